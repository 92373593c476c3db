"""Calls another model first in each step, and forks a process."""

import os

import torch
from torch import nn

metric, model = nn.Linear(3, 3), nn.Linear(12, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    with torch.no_grad():
        metric(torch.randn(50, 3))
    optimizer.zero_grad()
    model(torch.randn(6, 12)).sum().backward()
    optimizer.step()
    if step == 0:
        child = os.fork()
        if not child:
            optimizer.step()
            os._exit(0)
        assert os.wait()[0] == child
