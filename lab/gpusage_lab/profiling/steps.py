"""One step of a workload on a device: forward, and in training backward and the optimizer; runs in the worker alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from gpusage.graphs.torch.libraries import import_library
from gpusage_hooks.types import Workload
from gpusage_lab.profiling.models import Built

Step = Callable[[], Any]
Torch = Any
"""The module torch, or a value of it; it has no types where it is not installed."""
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "ALLOC_FAILED", "not enough memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where and how a step runs."""

    workload: Workload
    device: str


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether *error* says that the device's memory does not suffice."""
    kind = type(error).__name__
    return (
        isinstance(error, MemoryError)
        or kind == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY))
    )


def step_of(built: Built, settings: Settings) -> Step:
    """Return a function that runs one step; *built* belongs to it from now on."""
    torch = import_library("torch")
    workload = settings.workload
    _allow_tf32(torch, is_allowed=workload.precision == "tf32")
    name, _, pure = workload.precision.partition("-")
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(name)
    dtype = half if half is not None and (pure or workload.mode == "infer") else torch.float32
    module = built.module.to(dtype)
    module.zero_grad(set_to_none=True)
    arguments, words = built.batch(workload.batch_size, settings.device, dtype)
    if workload.mode == "infer":
        return _inference(torch, module.eval(), arguments, words)
    kind = settings.device.partition(":")[0]
    casting: Callable[[], AbstractContextManager[Any]] = (
        nullcontext if half is None or pure else lambda: torch.autocast(kind, dtype=half)
    )
    scaler = torch.amp.GradScaler(kind, enabled=workload.precision == "fp16" and kind == "cuda")
    optimizer = _optimizer(torch, module, workload.optimizer)
    module.train()

    def step() -> None:
        with casting():
            loss = _loss(torch, module(*arguments, **words))
        scaler.scale(loss).backward()
        if optimizer is None:
            module.zero_grad(set_to_none=True)
            return
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def _inference(torch: Torch, module: Torch, arguments: tuple[Any, ...], words: dict[str, Any]) -> Step:
    def step() -> None:
        with torch.inference_mode():
            module(*arguments, **words)

    return step


def _allow_tf32(torch: Torch, *, is_allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = is_allowed
    torch.backends.cudnn.allow_tf32 = is_allowed


def _optimizer(torch: Torch, module: Torch, name: str) -> Torch | None:
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    optim = torch.optim
    makers: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "sgd": lambda: optim.SGD(weights, lr=1e-4),
        "momentum": lambda: optim.SGD(weights, lr=1e-4, momentum=0.9),
        "adam": lambda: optim.Adam(weights, lr=1e-5),
        "adamw": lambda: optim.AdamW(weights, lr=1e-5),
        "adafactor": lambda: optim.Adafactor(weights, lr=1e-5),
    }
    return makers[name]()


def _loss(torch: Torch, output: Torch) -> Torch:
    """Return what is learned from: classes of each row where the output is scores, else the mean square."""
    scores = _first_tensor(torch, output)
    if scores.dim() in (2, 3) and scores.shape[-1] > 1:
        flat = scores.reshape(-1, scores.shape[-1])
        return torch.nn.functional.cross_entropy(flat, torch.zeros(len(flat), dtype=torch.int64, device=flat.device))
    return _mean_square(torch, output)


def _mean_square(torch: Torch, output: Torch) -> Torch:
    return sum(part.float().square().mean() for part in _tensors(torch, output))


def _first_tensor(torch: Torch, output: Torch) -> Torch:
    logits = getattr(output, "logits", None)
    return logits if isinstance(logits, torch.Tensor) else _tensors(torch, output)[0]


def _tensors(torch: Torch, output: Torch) -> list[Torch]:
    from torch.utils._pytree import tree_leaves  # as torch

    leaves = output.to_tuple() if hasattr(output, "to_tuple") else output
    return [leaf for leaf in tree_leaves(leaves) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
