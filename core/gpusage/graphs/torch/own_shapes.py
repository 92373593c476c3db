"""Shapes of what operators return whose own meta kernels want values, or take minutes; imported only with PyTorch.

Each function takes an operator's arguments by the names of its schema, on the meta device, and returns tensors like the
operator's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gpusage.graphs.torch.recurrences import NAMES, direction_count

Arguments = Mapping[str, Any]
_CPU = torch.device("cpu")


def _recurrence(arguments: Arguments) -> tuple[torch.Tensor, ...]:
    """Return a recurrent layer's outputs and last states; PyTorch goes through each time step one by one."""
    source = arguments["data" if "data" in arguments else "input"]
    states = arguments["hx"] if isinstance(arguments["hx"], (list, tuple)) else (arguments["hx"],)
    output = source.new_empty((*source.shape[:-1], direction_count(arguments) * states[0].shape[-1]))
    return (output, *(state.new_empty(state.shape) for state in states))


def _packed(arguments: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all steps of all samples in one row, and how many samples each step has.

    All sequences are taken to be as long as the longest, for their lengths are values. PyTorch wants the second on a
    processor.
    """
    source = arguments["input"]
    steps, samples = source.shape[1::-1] if arguments["batch_first"] else source.shape[:2]
    row = source.new_empty((steps * samples, *source.shape[2:]))
    return row, torch.full((steps,), samples, dtype=torch.int64, device=_CPU)


def _padded(arguments: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sequences of a packed row, and how long each is."""
    row, steps = arguments["data"], arguments["batch_sizes"].shape[0]
    samples = row.shape[0] // steps
    shape = (samples, steps) if arguments["batch_first"] else (steps, samples)
    return row.new_empty((*shape, *row.shape[1:])), torch.full((samples,), steps, dtype=torch.int64, device=_CPU)


def _kept_boxes(arguments: Arguments) -> torch.Tensor:
    """Return as many places as there are boxes: how many of them overlap too much depends on values."""
    boxes: torch.Tensor = arguments["dets"]
    return boxes.new_empty(boxes.shape[:1], dtype=torch.int64)


OWN_SHAPES: Mapping[str, Callable[[Arguments], Any]] = {
    **dict.fromkeys(NAMES, _recurrence),
    "_pack_padded_sequence": _packed,
    "_pad_packed_sequence": _padded,
    "torchvision.nms": _kept_boxes,
}
"""By the name that `gpusage.graphs.torch.aten` knows an operator by."""
