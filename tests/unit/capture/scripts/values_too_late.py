"""A model that reads a value of its input; the time limit comes while its graph is tried."""

import os
import signal

import torch
from torch import nn


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        if is_updating:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.layer(x) if x.mean().item() < 100 else x


is_updating = False
model = Branching().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(6, 4).cuda()).sum().backward()
    is_updating = True
    optimizer.step()
    is_updating = False
