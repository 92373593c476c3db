"""A GAN: two networks, two optimizers, three calls of one of them in a step."""

import torch
from torch import nn

G = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 64)).cuda()
D = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(), nn.Linear(32, 1)).cuda()
optim_d, optim_g = torch.optim.Adam(D.parameters()), torch.optim.Adam(G.parameters())
ones = torch.ones(24, 1).cuda()
for _ in range(10):
    D.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(D(torch.randn(24, 64).cuda()), ones).backward()
    fake = G(torch.randn(24, 10, device="cuda"))
    nn.functional.binary_cross_entropy_with_logits(D(fake.detach()), 1 - ones).backward()
    optim_d.step()
    G.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(D(fake), ones).backward()
    optim_g.step()
    samples = G(torch.randn(25, 10, device="cuda"))  # to be shown; nobody asks for its gradient
