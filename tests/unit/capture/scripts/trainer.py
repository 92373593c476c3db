"""The Trainer of transformers, with accumulation and an evaluation; its model has a padding token and gets no mask."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

sizes = {"n_layer": 1, "n_head": 2, "n_embd": 32, "vocab_size": 64, "n_positions": 32}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, pad_token_id=0))
tokens = torch.arange(16)
samples = [{"input_ids": tokens, "labels": tokens}] * 64
options = {"bf16": torch.cuda.is_available(), "gradient_accumulation_steps": 2, "save_strategy": "no", "report_to": []}
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, per_device_train_batch_size=4, max_steps=6, **options)
    Trainer(model, arguments, train_dataset=samples).train()
