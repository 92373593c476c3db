"""DeepSpeed's engine with ZeRO 2, as its launcher or torchrun starts it; the engine makes the optimizer."""

import deepspeed
import torch
from torch import nn

deepspeed.init_distributed()
model = nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 4))
config = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
}
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for _ in range(8):
    loss = engine(torch.randn(8, 16, dtype=torch.bfloat16).to(engine.device)).float().sum()
    engine.backward(loss)
    engine.step()
