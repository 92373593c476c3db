"""An encoder and a decoder, each with an optimizer of its own, and a teacher without a gradient."""

import torch
from torch import nn

encoder, decoder, teacher = (nn.Linear(*sizes).cuda() for sizes in ((32, 8), (8, 32), (32, 32)))
teacher.eval()
optimizers = [torch.optim.Adadelta(encoder.parameters()), torch.optim.Adadelta(decoder.parameters())]
for _ in range(10):
    x = torch.randn(48, 32).cuda()
    with torch.no_grad():
        goal = teacher(x)
    for optimizer in optimizers:
        optimizer.zero_grad()
    nn.functional.mse_loss(decoder(encoder(x)), goal).backward()
    for optimizer in optimizers:
        optimizer.step()
