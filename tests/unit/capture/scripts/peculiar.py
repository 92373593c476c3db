"""Profiles its first steps, has an optimizer hook, an argument named `module`, and statistics in shared memory."""

import time

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import profile


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 4), nn.BatchNorm1d(4)

    def forward(self, module):
        return self.norm(self.layer(module))


steps = []
register_optimizer_step_post_hook(lambda *_: steps.append(1))
model = Normed().share_memory()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(80):
    optimizer.zero_grad()
    if step < 2:
        with profile(with_stack=True, with_modules=True):
            loss = model(module=torch.randn(6, 8)).sum()
    else:
        loss = model(module=torch.randn(6, 8)).sum()
    loss.backward()
    optimizer.step()
    if step == 5:
        time.sleep(2)  # the card is made meanwhile
assert model.norm.num_batches_tracked.item() == len(steps) == 80
