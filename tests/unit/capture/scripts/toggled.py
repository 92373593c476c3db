"""A GAN that switches the gradients of its two networks on and off, as Lightning's manual optimization does."""

import torch
from torch import nn

G, D = nn.Linear(10, 64).cuda(), nn.Linear(64, 1).cuda()
optim_g, optim_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for _ in range(6):
    noise = torch.randn(24, 10, device="cuda")
    D.requires_grad_(False)
    optim_g.zero_grad()
    D(G(noise)).mean().backward()
    optim_g.step()
    D.requires_grad_(True)
    G.requires_grad_(False)
    optim_d.zero_grad()
    (D(torch.randn(24, 64, device="cuda")) - D(G(noise).detach())).mean().backward()
    optim_d.step()
    G.requires_grad_(True)
