"""A model that reads a value of its input: it has no graph in whole, and its parts have one."""

import torch
from torch import nn


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if x.mean().item() < 100 else x


model = Branching().cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(6, 4).cuda()).sum().backward()
    optimizer.step()
