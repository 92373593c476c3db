"""A model that reads a value of its input, and whose parts' results must be no zeros: it has no graph at all."""

import torch
from torch import nn


class Inverting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.linalg.inv(self.layer(x)) if x.mean().item() < 100 else x


model = Inverting().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(6, 4, 4).cuda()).sum().backward()
    optimizer.step()
