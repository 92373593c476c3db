"""The model casts itself: its weights are kept in fp32, and computed with in bf16; a large embedding is in bf16."""

import torch
from torch import nn


class Casting(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5000, 32, dtype=torch.bfloat16)
        self.layers = nn.Sequential(Casting(32, 64), nn.ReLU(), Casting(64, 10))

    def forward(self, tokens):
        return self.layers(self.words(tokens)).float()


model = Model().to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    scores = model(torch.zeros(6, 9, dtype=torch.long, device="cuda"))
    nn.functional.cross_entropy(scores.flatten(0, 1), torch.zeros(54, dtype=torch.long, device="cuda")).backward()
    optimizer.step()
