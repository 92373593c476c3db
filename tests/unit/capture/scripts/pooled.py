"""Prepares its data in a pool of processes, which are ended by a signal, and then trains."""

import multiprocessing

import torch
from torch import nn


def count(number):
    return number + 1


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        size = max(pool.map(count, range(11)))
    pool.join()
    model = nn.Linear(size, 3).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(7, size, device="cuda")).sum().backward()
        optimizer.step()
