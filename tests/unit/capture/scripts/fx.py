"""A model that torch.fx traces between its steps: each layer must be a node of its own."""

import torch
from torch import fx, nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x):
        return x + self.inner(x)


model = nn.Sequential(Block(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    traced = fx.symbolic_trace(model)
    assert [node.op for node in traced.graph.nodes].count("call_module") == 3
    traced(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""The traced model's weights are the model's own."""
