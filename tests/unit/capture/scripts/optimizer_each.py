"""Each weight has an optimizer of its own, which updates it as soon as its gradient is there."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4)).to("cuda")
optimizers = {weight: torch.optim.AdamW([weight]) for weight in model.parameters()}


def update(weight):
    optimizers[weight].step()
    optimizers[weight].zero_grad()


for weight in model.parameters():
    weight.register_post_accumulate_grad_hook(update)
for _ in range(4):
    model(torch.randn(32, 20, device="cuda")).square().mean().backward()
