"""Fully sharded, as torchrun starts it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

dist.init_process_group("nccl")
model = FullyShardedDataParallel(nn.Linear(16, 4).cuda())
assert isinstance(model, FullyShardedDataParallel)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 16, device="cuda")).sum().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
dist.destroy_process_group()
