"""Fails after its first pass."""

import torch

model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(6, 4).cuda()).sum().backward()
raise RuntimeError("no more data")
