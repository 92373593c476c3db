"""Inference that ends within the cycle in which its model is taken apart, beside a model that is called as often."""

import torch
from torch import nn


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) if x.mean().item() < 100 else x[:, :2]


model, head = Branching().cuda().eval(), nn.Linear(2, 1).cuda()
with torch.no_grad():
    for _ in range(3):
        head(model(torch.randn(6, 4).cuda()))
