"""A Wasserstein GAN: a penalty on the critic's gradient, and one update of the generator after five of the critic."""

import torch
from torch import nn

G = nn.Linear(10, 64).to("cuda")
D = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(), nn.Linear(32, 1)).to("cuda")
optim_g, optim_d = torch.optim.RMSprop(G.parameters()), torch.optim.RMSprop(D.parameters())
for step in range(12):
    real = torch.randn(16, 64).type(torch.cuda.FloatTensor)
    fake = G(torch.randn(16, 10, device="cuda"))  # its gradient comes back, and nobody uses it
    between = (0.5 * (real + fake)).detach().requires_grad_()
    (slope,) = torch.autograd.grad(D(between).sum(), between, create_graph=True)
    optim_d.zero_grad()
    (D(fake).mean() - D(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()).backward()
    optim_d.step()
    if step % 5 == 1:
        optim_g.zero_grad()
        (-D(G(torch.randn(16, 10, device="cuda"))).mean()).backward()
        optim_g.step()
