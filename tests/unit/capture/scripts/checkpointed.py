"""Activations are computed once more; TF32 products."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.set_float32_matmul_precision("high")


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


model = Deep().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 16).cuda()).sum().backward()
    optimizer.step()
