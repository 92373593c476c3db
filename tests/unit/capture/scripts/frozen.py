"""A large frozen layer with a small trained one, as LoRA has it."""

import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(90, 100, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(90, 5, bias=False), nn.Linear(5, 110, bias=False)

    def forward(self, x):
        return self.base(x).sum(1) + self.up(self.down(x)).sum(1)


model = Adapted().cuda()
optimizer = torch.optim.RMSprop([each for each in model.parameters() if each.requires_grad])
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 90).cuda()).sum().backward()
    optimizer.step()
