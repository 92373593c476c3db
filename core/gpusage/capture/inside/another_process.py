"""A process for long work that the user's program does not notice: a fork that touches no GPU."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpusage.capture.inside.observer import is_fsdp, parts_of

PROCESSOR_LIMIT_S = 60
LIMIT_S = 600
"""Long, because a job with one core leaves this process hundredths of it."""


def in_another_process(function: Callable[[], None]) -> None:
    """Call *function* in a detached process that prints nothing."""
    process = os.getpid()
    if any(action == "error" for action, *_ in warnings.filters):
        return  # Python 3.12 warns of a fork beside threads

    # No handler of the program's runs in the fork, so all signals wait until it has its own.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
    finally:
        if os.getpid() == process:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    # The process in between ends at once, so that the program's wait() finds no child that it did not start.
    try:
        if os.fork():
            os._exit(0)
        forget_handlers()
        signal.alarm(LIMIT_S)
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_LIMIT_S)
        # The program must not notice: it keeps its cores.
        os.nice(19)
        gc.disable()  # what is garbage may hold memory of the GPU
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        close_others()
        function()
    finally:
        os._exit(0)


def close_others() -> None:
    """Close every file but the first three."""
    # From the list in /proc: with a limit of 2^30 files, trying each number takes longer than we have.
    for descriptor in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2:
            with suppress(OSError):
                os.close(descriptor)


def forget_handlers() -> None:
    """Let signals end this process, except the signals that managers and terminals send to a whole job."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        is_for_all = number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
        with suppress(OSError, ValueError):  # the C library keeps some for itself
            signal.signal(number, signal.SIG_IGN if is_for_all else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


# Objects that this process must not free, because it cannot use the GPU.
_HELD: list[Any] = []


def undivide(modules: list[nn.Module], sharded: list[nn.Module]) -> list[Any]:
    """Make *modules* whole that FSDP or DeepSpeed has divided; return FSDP's policies for casting weights.

    Args:
        modules: Modules that were called within their wrappers.
        sharded: The outermost `FullyShardedDataParallel` around each, if any.
    """
    policies = []
    parts = {id(part): part for module in (*sharded, *modules) for part in parts_of(module)}
    for part in parts.values():
        if is_fsdp(part):
            policies.append(vars(part)["mixed_precision"])
            _undivide_rows(part)

        for name, inner in part._modules.items():
            if inner is not None and is_fsdp(inner):
                part._modules[name] = inner._modules["_fsdp_wrapped_module"]
        # `fully_shard` puts its own class in front of the module's.
        base = type(part).__bases__[0]
        if base.__name__ == "FSDPModule" and base.__module__.startswith("torch."):
            divided: Any = part
            policies.append(divided._get_fsdp_state()._mp_policy)
            part.__class__ = type(part).__bases__[1]
        # Hooks would gather weights from the other processes, which a fork cannot reach.
        for hooks in (part._forward_pre_hooks, part._forward_hooks):
            for key, hook in list(hooks.items()):
                if str(getattr(hook, "__module__", "")).startswith(("torch.distributed.", "deepspeed.")):
                    del hooks[key]

    return policies


def _undivide_rows(wrapper: Any) -> None:
    """Replace each weight in the row of *wrapper* by a whole weight without values."""
    _HELD.append(wrapper)
    # The row of weights lies on the GPU, which a fork may not touch.
    wrapper._fsdp_wrapped_module._parameters.pop("_flat_param", None)
    if wrapper._handle is None:
        return

    row = wrapper._handle.flat_param
    weights = row._params or [row] * len(row._shapes)  # the former with `use_orig_params`
    for place, shape, weight in zip(row._param_infos, row._shapes, weights, strict=True):
        _HELD.append(vars(place.module).pop(place.param_name, None))
        empty = torch.empty(shape, dtype=weight.dtype, device="meta")
        place.module._parameters[place.param_name] = nn.Parameter(empty, requires_grad=weight.requires_grad)
    for tied in row._shared_param_infos:
        _HELD.append(vars(tied.module).pop(tied.param_name, None))
        tied.module._parameters[tied.param_name] = tied.prim_module._parameters[tied.prim_param_name]


def forget_values(modules: list[nn.Module], optimizers: list[Any]) -> None:
    """Replace all tensors of *modules* and *optimizers* by tensors without values."""
    # A fork cannot use a GPU's tensors, and shared memory is the program's. One shadow per tensor keeps ties.
    shadows: dict[int, torch.Tensor] = {}

    def shadow(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type == "meta":
            return value

        if id(value) not in shadows:
            _HELD.append(value)
            if hasattr(value, "ds_shape"):  # DeepSpeed's, of the whole weight
                empty = torch.empty(value.ds_shape, dtype=value.dtype, device="meta")
            else:  # its strides show the layout
                empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            is_weight = isinstance(value, nn.Parameter)
            shadows[id(value)] = nn.Parameter(empty, requires_grad=value.requires_grad) if is_weight else empty
        return shadows[id(value)]

    for module in modules:
        for part in parts_of(module):
            for table in (part._parameters, part._buffers, vars(part)):
                for name, value in list(table.items()):
                    if table is not vars(part) or getattr(value, "is_cuda", False):  # others may be read as numbers
                        table[name] = shadow(value)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [shadow(weight) for weight in group["params"]]
