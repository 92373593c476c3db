"""A language model of transformers trains with a mask and labels."""

import torch
from transformers import BertConfig, BertForMaskedLM

sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
model = BertForMaskedLM(BertConfig(vocab_size=100, **sizes)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    tokens = torch.randint(3, 100, (4, 16), device="cuda")
    model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
