"""Layers that are trained one by one, beside a profiler, whose forward pass the program calls itself, and traces."""

import torch
from torch import nn


class Layer(nn.Linear):
    def forward(self, x):
        return torch.relu(super().forward(x))


class Loss(nn.Module):
    def forward(self, x):
        return x.square().mean()


layers = [Layer(20, 32).cuda(), Layer(32, 32).cuda()]
torch.jit.trace(layers[0], torch.randn(18, 20))
optimizers = [torch.optim.Adam(layer.parameters()) for layer in layers]
with torch.autograd.profiler.profile(use_cuda=True) as profiler:
    for _ in range(4):
        x = torch.randn(18, 20, device="cuda")
        for layer, optimizer in zip(layers, optimizers, strict=True):
            optimizer.zero_grad()
            Loss()(layer.forward(x)).backward()
            optimizer.step()
            x = layer.forward(x).detach()
        profiler.step()
