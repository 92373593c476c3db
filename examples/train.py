"""A training program as its user wrote it: nothing in it knows of gpusage."""

import time

import torch
from torch import nn

model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(40):
    images, labels = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    time.sleep(0.2)  # a loader that is slower than the model
