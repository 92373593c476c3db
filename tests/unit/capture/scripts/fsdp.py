"""Fully sharded, as torchrun starts it; it sets how a state is kept, and reads an attribute of its model."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType


class Network(nn.Sequential):
    width = 16


dist.init_process_group("nccl")
model = FullyShardedDataParallel(Network(nn.Linear(16, 4)).cuda())
assert isinstance(model, FullyShardedDataParallel)
FullyShardedDataParallel.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, model.width, device="cuda")).sum().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    assert isinstance(model[0], nn.Linear)
dist.destroy_process_group()
