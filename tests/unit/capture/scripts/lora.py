"""Adapters of 4 bytes beside frozen weights of 2, under autocast, as peft and transformers train them."""

import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(100, 100, dtype=torch.bfloat16).requires_grad_(False)
        self.down, self.up = nn.Linear(100, 2, bias=False), nn.Linear(2, 100, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x.to(self.down.weight.dtype)))


model = Adapted().to("cuda")
optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
for _ in range(4):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(torch.randn(6, 100, dtype=torch.bfloat16, device="cuda")).float().square().mean()
    loss.backward()
    optimizer.step()
