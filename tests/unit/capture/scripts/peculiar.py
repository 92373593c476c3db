"""Profiles its first steps, has an optimizer hook, an argument named `module`, and statistics in shared memory.

Its classes say other things of themselves than PyTorch's, and draw a random number when they are asked: the model and
its base have names of classes that divide, and it has a method `parameters` of its own; the samples are a tensor of a
class of its own, in a pytree that takes nothing but tensors.
"""

import time

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import profile
from torch.utils import _pytree


class Drawn(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        torch.rand(1)
        return super().__torch_function__(function, types, args, kwargs or {})


class Samples:
    def __init__(self, features):
        torch.rand(1)
        if not isinstance(features, torch.Tensor):
            raise TypeError("samples must be a tensor")
        self.features = features


class FSDPModule:
    pass


class DataParallel(FSDPModule, nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))

    def parameters(self, *args):
        torch.rand(1)
        return list(super().parameters(*args))

    def forward(self, module):
        return self.layers(module.features) + 1


_pytree.register_pytree_node(Samples, lambda samples: ([samples.features], None), lambda each, _: Samples(*each))
steps = []
register_optimizer_step_post_hook(lambda *_: steps.append(1))
model = DataParallel().share_memory()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(80):
    optimizer.zero_grad()
    samples = Samples(torch.randn(6, 8).as_subclass(Drawn))
    if step < 2:
        with profile(with_stack=True, with_modules=True):
            loss = model(module=samples).sum()
    else:
        loss = model(module=samples).sum()
    loss.backward()
    optimizer.step()
    if step == 5:
        time.sleep(2)  # the card is made meanwhile
assert model.layers[1].num_batches_tracked.item() == len(steps) == 80
