"""A model without parts that reads a value of its input: it has no graph."""

import torch
from torch import nn


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return x @ self.weight if x.mean().item() < 100 else x


model = Branching().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(6, 4).cuda()).sum().backward()
    optimizer.step()
