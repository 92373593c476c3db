"""Reinforcement learning: many steps of a few environments without a gradient, then updates with minibatches."""

import torch
from torch import nn

actor, critic = nn.Linear(4, 2).to("cuda"), nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=2.5e-4)
for _ in range(2):
    states = []
    for _ in range(16):
        states.append(torch.randn(4, 4, device="cuda"))
        with torch.no_grad():
            torch.distributions.Categorical(logits=actor(states[-1])).sample()
            critic(states[-1])
    for part in torch.cat(states).split(32):
        optimizer.zero_grad()
        (critic(part).square().mean() - torch.distributions.Categorical(logits=actor(part)).entropy().mean()).backward()
        nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
        optimizer.step()
