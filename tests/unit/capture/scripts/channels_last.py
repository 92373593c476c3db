"""Images with the channels of each pixel side by side."""

import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))
model = model.to("cuda", memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    images = torch.randn(4, 3, 8, 8).to("cuda", memory_format=torch.channels_last)
    optimizer.zero_grad()
    model(images).sum().backward()
    optimizer.step()
