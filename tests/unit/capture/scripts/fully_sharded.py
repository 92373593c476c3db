"""Fully sharded layer by layer, with weights that are computed with in half precision, as torchrun starts it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model = nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 4)).to(rank)
for layer in model[::2]:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
assert isinstance(model, FSDPModule)
model[0].set_modules_to_forward_prefetch([model[2]])
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(rank)
for number in range(8):
    model.set_requires_gradient_sync(bool(number % 2))
    model(torch.randn(8, 16).to(rank)).sum().backward()
    if number % 2:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
