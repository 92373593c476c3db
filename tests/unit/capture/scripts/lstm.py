"""An LSTM language model, sequences first, whose weights are changed by hand."""

import torch
from torch import nn


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layer, self.out = nn.Embedding(50, 16), nn.LSTM(16, 32, 2), nn.Linear(32, 50)

    def forward(self, tokens, hidden):
        values, hidden = self.layer(self.table(tokens), hidden)
        return self.out(values), hidden


model = Language().to(0)
hidden = (torch.zeros(2, 20, 32, device="cuda:0"), torch.zeros(2, 20, 32, device="cuda:0"))
for _ in range(9):
    model.train()
    model.zero_grad()
    hidden = tuple(each.detach() for each in hidden)
    scores, hidden = model(torch.randint(0, 50, (35, 20)).to("cuda:0"), hidden)
    nn.functional.cross_entropy(scores.view(-1, 50), torch.zeros(700, dtype=torch.long)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for weight in model.parameters():
        weight.data.add_(weight.grad, alpha=-0.1)
