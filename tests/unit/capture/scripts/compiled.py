"""A compiled model in pure bf16."""

import torch
from torch import nn

model = torch.compile(nn.Sequential(nn.Linear(16, 16), nn.GELU()).to("cuda", dtype=torch.bfloat16))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 16, device="cuda", dtype=torch.bfloat16)).float().sum().backward()
    optimizer.step()
torch.cuda.synchronize()
