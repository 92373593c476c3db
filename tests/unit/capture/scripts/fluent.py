"""A module that has any attribute: each returns the module itself."""

import torch
from torch import nn


class Fluent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return self

    def forward(self, x):
        return self.layer(x)


model = Fluent()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(9, 5)).sum().backward()
    optimizer.step()
