"""A whole step that is compiled as one graph, its optimizer too: nothing may break the graph, or compile it anew."""

import torch
from torch import nn
from torch._dynamo.utils import counters

model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(fullgraph=True, backend="eager")
def loss_of(x):
    return model(x).square().mean()


@torch.compile(fullgraph=True, backend="eager")
def update():
    optimizer.step()


for _ in range(6):
    optimizer.zero_grad()
    loss_of(torch.randn(4, 8)).backward()
    update()
graphs = counters["stats"]["unique_graphs"]
