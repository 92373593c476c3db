"""A detector: its batch is a list of images, and which way it takes depends on their values."""

import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, images):
        return sum(self.layer(image).mean() for image in images if image.sum() > -1e9)


model = Detector().to("cuda")
model.eval()
with torch.no_grad():
    model.layer(torch.zeros(1, 3, 8, 8).to("cuda"))  # how large are its features?
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(4):
    optimizer.zero_grad()
    model([torch.rand(3, 12, 16, device="cuda"), torch.rand(3, 16, 12, device="cuda")]).backward()
    optimizer.step()
