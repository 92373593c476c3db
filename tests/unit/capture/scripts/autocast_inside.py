"""The model itself turns on autocast, as accelerate and Fabric let it; a library compiles a function nobody calls."""

import torch
from torch import nn


@torch.compile(dynamic=True)
def attention(x):
    return x.softmax(-1)


class Casting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            hidden = self.layers(x)
        with torch.autocast(hidden.device.type, enabled=False):
            return hidden.float().log_softmax(-1)


model = Casting().to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    nn.functional.nll_loss(model(torch.randn(12, 8, device="cuda")), torch.zeros(12, dtype=int).to("cuda")).backward()
    optimizer.step()
