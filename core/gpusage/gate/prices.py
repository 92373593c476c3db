"""What half a GPU would cost one part of a step, by the prediction from its graph; imported only with PyTorch."""

from __future__ import annotations

from typing import Any

import torch

import gpusage
from gpusage.devices.precisions import PURE
from gpusage.gate import cuda
from gpusage.gate.parts import HALF_PERCENT
from gpusage.graphs.torch.recording import SEQUENCES_FIRST_NOTE
from gpusage_hooks.errors import DeviceError, GraphError, RequestError
from gpusage_hooks.types import Precision


def own_gpu() -> str | None:
    """Return the name of PyTorch's GPU, ``None`` where it uses none."""
    return torch.cuda.get_device_name() if cuda.is_used() else None


def half_price(module: torch.nn.Module, inputs: tuple[Any, ...], seconds: float, gpu: str) -> float | None:
    """Return the time of a training step of *module* on half of *gpu* over that on the whole; ``None`` if unknown.

    Only modules of PyTorch itself are asked, for others might change when they are played.

    Args:
        module: A part of the model.
        inputs: What it is called with; only the shapes count.
        seconds: What one run took, forward and backward, which corrects the prediction.
        gpu: By its name of the catalogue, or PyTorch's.
    """
    sizes = [each.shape for each in inputs if isinstance(each, torch.Tensor) and each.dim()]
    if not type(module).__module__.startswith("torch.nn.") or not sizes:
        return None
    try:
        graph = gpusage.read_model(module, inputs)
        need = gpusage.predict(
            graph,
            gpu=gpu,
            share=HALF_PERCENT,
            step_time_s=seconds,
            batch_size=int(sizes[0][int(SEQUENCES_FIRST_NOTE in graph.notes)]),
            mode="train",
            precision=_precision(module),
            optimizer="none",
        )
    except (DeviceError, GraphError, RequestError):
        return None
    return need.slowdown.value


def _precision(module: torch.nn.Module) -> Precision:
    if not torch.is_autocast_enabled("cuda"):
        weight = next(module.parameters(), None)
        return "fp32" if weight is None else PURE.get(str(weight.dtype), "fp32")
    return "bf16" if torch.get_autocast_dtype("cuda") is torch.bfloat16 else "fp16"
