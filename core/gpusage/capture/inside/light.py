"""A light way to a program's first step: no large initial values, workers, compilation or peers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from gpusage.capture.inside.cuda_on_cpu import Inert
from gpusage.capture.inside.observer import AUTOCAST, Wrapper, weights_of

LARGE_ELEMENTS = 1 << 16
"""Least elements of a weight without initial values: untouched memory takes no room."""
_FILLS = ("normal_", "uniform_", "trunc_normal_", "copy_", "zero_", "fill_")
# DataLoader's usual arguments: it refuses options of workers without any worker.
_NO_WORKERS = {"num_workers": 0, "prefetch_factor": None, "multiprocessing_context": None, "persistent_workers": False}
_CHECKPOINT_WORDS = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")


@dataclass(slots=True)
class LeftOut:
    """The program's calls that do nothing here.

    Attributes:
        is_compiled: Whether it compiles a model, or calls a model in a compiled function.
        is_checkpointed: Whether it computes activations once more.
        strategy: Division of the model, or ``None``.
        precision: Precision of a divided model's weights while it computes, if it has its own.
        compiled_depth: Running compiled functions: libraries compile some that no program calls.
        gpu_count: Processes that train together; a program may set it itself.
    """

    is_compiled: bool = False
    is_checkpointed: bool = False
    strategy: str | None = None
    precision: str | None = None
    compiled_depth: int = 0
    gpu_count: int = 1


def make_light(left_out: LeftOut) -> None:
    """Replace the heavy functions of PyTorch in this process; *left_out* notes the program's calls of them."""
    _leave_out_initial_values()
    _leave_out_compilation(left_out)
    _load_without_workers()
    # A profiler measures nothing here.
    anything: Any = torch
    anything.profiler.profile = anything.autograd.profiler.profile = Inert
    _checkpoint_directly(left_out)
    _wrap_alone(left_out)
    if torch.distributed.is_available():
        _join_alone(left_out)


def _leave_out_initial_values() -> None:
    def only_small(function: Callable[..., Any], *, of_parameters: bool) -> Callable[..., Any]:
        def fill(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            is_left_out = tensor.numel() > LARGE_ELEMENTS and (isinstance(tensor, nn.Parameter) or not of_parameters)
            return tensor if is_left_out else function(tensor, *args, **kwargs)

        return fill

    for name in [each for each in dir(nn.init) if each.endswith("_") and not each.startswith("_")]:
        setattr(nn.init, name, only_small(getattr(nn.init, name), of_parameters=False))
    for name in [each for each in _FILLS if hasattr(torch.Tensor, each)]:
        setattr(torch.Tensor, name, only_small(getattr(torch.Tensor, name), of_parameters=True))
    # Without gradients there is no norm to clip.
    utilities: Any = nn.utils
    utilities.clip_grad_norm_ = utilities.clip_grad_value_ = lambda *_, **__: torch.zeros(())


def _leave_out_compilation(left_out: LeftOut) -> None:
    def compile_nothing(model: Any = None, *_: Any, **__: Any) -> Any:
        # As a decorator with options, `torch.compile` is called without a model first.
        if model is None:
            return compile_nothing
        module = getattr(model, "__self__", model)
        if isinstance(module, nn.Module):
            left_out.is_compiled = left_out.is_compiled or next(weights_of(module), None) is not None
            return model

        @wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            left_out.compiled_depth += 1
            try:
                return model(*args, **kwargs)
            finally:
                left_out.compiled_depth -= 1

        return call

    anything: Any = torch
    anything.compile = compile_nothing
    module: Any = nn.Module
    module.compile = lambda self, *_, **__: compile_nothing(self)


def _load_without_workers() -> None:
    from torch.utils.data import DataLoader  # after the other replacements

    loader: Any = DataLoader
    begin, form = loader.__init__, signature(loader.__init__)

    def begin_alone(*args: Any, **kwargs: Any) -> None:
        bound = form.bind(*args, **kwargs)
        # Workers would start processes of their own for the few batches that are read.
        bound.arguments.update(_NO_WORKERS)
        begin(*bound.args, **bound.kwargs)

    loader.__init__ = begin_alone


def _checkpoint_directly(left_out: LeftOut) -> None:
    import torch.utils.checkpoint as checkpoints  # after the other replacements

    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        left_out.is_checkpointed = True
        return function(*args, **{name: value for name, value in kwargs.items() if name not in _CHECKPOINT_WORDS})

    anything: Any = checkpoints
    anything.checkpoint = call


def _wrap_alone(left_out: LeftOut) -> None:
    """Let DataParallel, DDP and FSDP call their module, on this host alone."""

    class SingleProcessModule(Wrapper):
        strategy = "ddp"

        def __init__(self, module: nn.Module, *_: Any, mixed_precision: Any = None, **__: Any) -> None:
            super().__init__(module)
            left_out.strategy = self.strategy
            left_out.precision = computed_precision(mixed_precision) or left_out.precision

        def no_sync(self) -> Any:
            return nullcontext()

        def clip_grad_norm_(self, *_: Any, **__: Any) -> torch.Tensor:
            return torch.zeros(())

    data_parallel: Any = type("DataParallel", (SingleProcessModule,), {})
    places: Any = (nn, nn.parallel)
    for place in places:
        place.DataParallel = data_parallel
    places[1].DistributedDataParallel = type("DistributedDataParallel", (SingleProcessModule,), {})
    if left_out.gpu_count > 1 and torch.distributed.is_available():
        from torch.distributed import fsdp  # takes seconds

        anything: Any = fsdp
        words = {"strategy": "fsdp", "__getitem__": lambda self, key: self.module[key]}
        divided = substitute(SingleProcessModule, fsdp.FullyShardedDataParallel, **words)
        for place in (anything, anything.fully_sharded_data_parallel):
            place.FullyShardedDataParallel = divided
        inert = SimpleNamespace(wait=lambda: None)
        methods = {name: lambda *_, **__: inert for name in vars(fsdp.FSDPModule) if not name.startswith("_")}
        anything.FSDPModule = type("FSDPModule", (), methods)
        anything.fully_shard = _divide_nothing(left_out, anything.FSDPModule)
    synchronized: Any = nn.SyncBatchNorm  # which refuses what is not on a GPU
    synchronized.forward = nn.BatchNorm1d.forward


class _Nothing(dict[str, Any]):
    """The result of a method that does nothing here, as a state or as a context."""

    __enter__ = __exit__ = lambda *_: None


def substitute(base: Any, real_class: Any, **words: Any) -> Any:
    """Return a *base* that passes for *real_class*: its other methods do nothing, all else is the model's."""

    def attribute(self: Any, name: str) -> Any:
        try:
            return nn.Module.__getattr__(self, name)
        except AttributeError:
            return getattr(self.module, name)

    names = [name for name in vars(real_class) if callable(getattr(real_class, name)) and not hasattr(base, name)]
    methods = {name: staticmethod(lambda *_, **__: _Nothing()) for name in names if not name.startswith("_")}
    return type(real_class.__name__, (base,), {**methods, "__getattr__": attribute, **words})


def _join_alone(left_out: LeftOut) -> None:
    """Let one process pass for the first of several: its messages go nowhere, FSDP divides nothing."""
    import torch.distributed as dist  # after the other replacements
    import torch.multiprocessing as processes

    begin = dist.init_process_group

    def begin_alone(*_: Any, **__: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore  # takes seconds

        begin(backend="fake", store=FakeStore(), rank=0, world_size=left_out.gpu_count)

    def spawn_one(function: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> Any:
        left_out.gpu_count = max(nprocs, left_out.gpu_count)
        function(0, *args)
        return SimpleNamespace(join=lambda *_, **__: True)

    anything: Any = dist
    anything.init_process_group = anything.distributed_c10d.init_process_group = begin_alone
    anything = processes
    anything.spawn = spawn_one


def _divide_nothing(left_out: LeftOut, module_class: Any) -> Callable[..., Any]:
    """Return a substitute for `fully_shard`: the methods that *module_class* gives to a module do nothing."""
    from torch.distributed.tensor import Shard  # takes seconds

    def shard(modules: Any, *_: Any, mp_policy: Any = None, **__: Any) -> Any:
        left_out.strategy = "fsdp"
        left_out.precision = computed_precision(mp_policy) or left_out.precision
        for module in [modules] if isinstance(modules, nn.Module) else modules:
            own = type(module)
            module.__class__ = type(own.__name__, (own, module_class), {})
            for weight in module.parameters():
                setattr(weight, "placements", (Shard(0),))  # noqa: B010 - which some programs check
        return modules

    return shard


def computed_precision(policy: Any) -> str | None:
    """Return the precision to which a divided model's weights are cast for computing; ``None`` without a cast."""
    computed: Any = getattr(policy, "param_dtype", None)
    return AUTOCAST.get(computed)
