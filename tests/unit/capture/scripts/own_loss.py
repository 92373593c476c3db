"""An autoencoder that is never called itself: its method for the loss calls its parts."""

import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 16), nn.Linear(8, 64)

    def loss(self, x):
        mean, spread = self.encoder(x).chunk(2, 1)
        return (self.decoder(mean + torch.randn_like(mean) * spread.exp()) - x).square().mean()


model = Autoencoder().to("cuda")
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    model.loss(torch.randn(12, 64, device="cuda")).backward()
    optimizer.step()
