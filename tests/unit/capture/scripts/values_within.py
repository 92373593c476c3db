"""Inference by a model in which one module reads a value of its input, beside a model that reads none."""

import torch
from torch import nn


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if x.mean().item() < 100 else x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = Branching(), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.inner(x))


model, head = Model().cuda().eval(), nn.Linear(2, 1).cuda()
with torch.no_grad():
    for _ in range(40):
        head(model(torch.randn(6, 4).cuda()))
