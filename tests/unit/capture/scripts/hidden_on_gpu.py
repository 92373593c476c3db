"""A recurrent model makes its first state on the GPU in each forward pass; a generator of the GPU draws the samples."""

import torch
from torch import nn


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x):
        first = torch.zeros(1, len(x), 16).to("cuda:0")
        return self.head(self.lstm(x, (first, torch.zeros_like(first)))[0][:, -1])


model = Recurrent().to("cuda:0")
optimizer = torch.optim.Adam(model.parameters())
generator = torch.Generator(device="cuda:0").manual_seed(1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(10, 5, 6, generator=generator, device="cuda:0")).square().mean().backward()
    optimizer.step()
