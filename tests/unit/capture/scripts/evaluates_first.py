"""Evaluates more batches than an inference job has calls, and then trains."""

import torch
from torch import nn

model = nn.Linear(12, 3)
with torch.no_grad():
    for _ in range(40):
        model(torch.randn(9, 12))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(5, 12)).sum().backward()
    optimizer.step()
