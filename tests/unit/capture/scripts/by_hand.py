"""Changes its weights by hand, for many steps."""

import torch
from torch import nn

model = nn.Linear(12, 3)
for _ in range(200):
    model.zero_grad()
    model(torch.randn(7, 12)).sum().backward()
    for weight in model.parameters():
        weight.data.add_(weight.grad, alpha=-0.1)
