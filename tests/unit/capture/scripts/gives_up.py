"""Makes one model after the other, and needs the memory of each for the next; a call has an object of its own."""

import weakref

import torch
from torch import nn


class Batch:
    def __init__(self):
        self.values = torch.randn(4, 8)


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, batch):
        return self.layer(batch.values)


alive = []
for _ in range(5):
    model, batch = Pooled(), Batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(batch).sum().backward()
        optimizer.step()
    alive += [weakref.ref(each) for each in (model, batch, batch.values, optimizer, model.layer.weight)]
    del model, batch, optimizer
assert not [each for each in alive if each() is not None]
