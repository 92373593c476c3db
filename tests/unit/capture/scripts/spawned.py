"""A program that starts a process for each GPU itself, with synchronized batch norms."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def work(rank, count):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29511", rank=rank, world_size=count)
    torch.cuda.set_device(rank)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8))).to(rank)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(8):
        model(torch.randn(16, 20).to(rank)).sum().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
