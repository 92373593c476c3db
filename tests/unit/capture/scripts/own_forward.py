"""Layers that are trained one by one, beside a profiler, and whose forward pass the program calls itself."""

import torch
from torch import nn


class Layer(nn.Linear):
    def forward(self, x):
        return torch.relu(super().forward(x))


layers = [Layer(20, 32).cuda(), Layer(32, 32).cuda()]
optimizers = [torch.optim.Adam(layer.parameters()) for layer in layers]
with torch.autograd.profiler.profile(use_cuda=True) as profiler:
    for _ in range(4):
        x = torch.randn(18, 20, device="cuda")
        for layer, optimizer in zip(layers, optimizers, strict=True):
            optimizer.zero_grad()
            layer.forward(x).square().mean().backward()
            optimizer.step()
            x = layer.forward(x).detach()
        profiler.step()
