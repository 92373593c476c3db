"""A plain loop with loader workers; it also writes a log."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
samples = TensorDataset(torch.randn(256, 20), torch.randint(0, 2, (256,)))
with open(sys.argv[1] if len(sys.argv) > 1 else "/dev/null", "w") as log:
    log.write("begun")
for x, y in DataLoader(samples, batch_size=32, num_workers=2, pin_memory=True):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    optimizer.step()
