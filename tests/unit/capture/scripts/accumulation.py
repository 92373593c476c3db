"""Gradients of four passes make one update, in bf16."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
for number in range(40):
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        loss = model(torch.randn(12, 8).to("cuda", non_blocking=True)).mean() / 4
    loss.backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
