"""The batch in a module's example inputs: its axis and size; imported only with PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map

from gpusage_hooks.types import Shape

_META = torch.device("meta")
# The types between which autocast changes what a layer reads.
_AUTOCAST = {torch.float32, torch.float16, torch.bfloat16}
# Channels, height and width of one image.
_IMAGE_RANK = 3
# Steps, samples and width.
_SEQUENCES_RANK = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The batch of a module's example inputs.

    Attributes:
        size: How many samples they hold.
        axis: 0, or 1 after the steps of a sequence.
    """

    size: int
    axis: int = 0


def find_batch(inputs: Any, axis: int = 0) -> Batch | None:  # torch's tree of tensors
    """Return the batch of the first of *inputs* with a feature axis, else of the first tensor, ``None`` without any."""
    leaves = _leaves(inputs)
    # A vector may be lengths or labels; a tensor with features shows the batch.
    leads = [leaf for leaf in leaves if leaf.dim() > 1] or leaves
    return Batch(size=int(leads[0].shape[axis]), axis=axis) if leads and leads[0].dim() > axis else None


def has_whole_numbers(inputs: Any) -> bool:  # torch's tree of tensors
    """Return whether *inputs* have tensors of integers or booleans, such as tokens and masks."""
    return any(not leaf.is_floating_point() for leaf in _leaves(inputs))


def as_autocast(module: torch.nn.Module, inputs: Any) -> Any:  # torch's tree of tensors
    """Return *inputs* in the type of most weights of *module*, as layers under autocast read them; on shapes alone."""
    counts: Counter[torch.dtype] = Counter()
    for weight in module.parameters():
        if not is_lazy(weight):
            counts[weight.dtype] += weight.numel()
    usual = max(counts, key=counts.__getitem__, default=torch.float32)

    def cast(leaf: Any) -> Any:  # a leaf may be anything
        is_cast = isinstance(leaf, torch.Tensor) and {leaf.dtype, usual} <= _AUTOCAST and leaf.dtype != usual
        return torch.empty(leaf.shape, dtype=usual, device=_META) if is_cast else leaf

    return tree_map(cast, inputs)


def resize_batch(inputs: Any, batch: Batch, size: int, *, as_ones: bool = False) -> Any:
    """Return *inputs* on the meta device with *size* samples.

    Args:
        inputs: The arguments of a module.
        batch: The batch in them.
        size: The samples to have.
        as_ones: Whole numbers are ones, on the CPU, where a model can read them.
    """

    def resize(leaf: Any) -> Any:  # a leaf may be anything
        if not isinstance(leaf, torch.Tensor):
            return leaf

        sizes = list(leaf.shape)
        # The batch axis, or one before it where the tensor has no steps.
        axes = [axis for axis in range(batch.axis, -1, -1) if sizes[axis : axis + 1] == [batch.size]]
        for axis in axes[:1]:
            sizes[axis] = size
        if as_ones and not leaf.is_floating_point():
            return torch.ones(sizes, dtype=leaf.dtype)
        return torch.empty(sizes, dtype=leaf.dtype, device=_META)

    return tree_map(resize, inputs)


def sample_count(arguments: Sequence[Any], batch: Batch) -> int:
    """Return the number of samples in the inputs of a module that works at one batch size.

    A list of images has one sample each; a tensor of rank 1 is one sample.
    """
    first = arguments[0] if arguments else None
    if isinstance(first, (list, tuple)) and first:
        images = [leaf for leaf in first if isinstance(leaf, torch.Tensor) and leaf.dim() == _IMAGE_RANK]
        return len(first) if len(images) == len(first) else batch.size
    is_one = all(leaf.dim() == 1 for leaf in _leaves(arguments))
    return 1 if arguments and is_one else batch.size


@contextmanager
def record_sequence_shapes(module: torch.nn.Module) -> Iterator[list[Shape]]:
    """Collect the steps and samples in the input of each layer with ``batch_first=False``."""
    shapes: list[Shape] = []

    def note(_: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        first = arguments[0] if arguments else keywords.get("query", keywords.get("input"))
        if isinstance(first, torch.nn.utils.rnn.PackedSequence):
            steps = len(first.batch_sizes)
            shapes.append((steps, len(first.data) // steps))
        elif isinstance(first, torch.Tensor) and first.dim() == _SEQUENCES_RANK:
            shapes.append(tuple(first.shape[:2]))

    parts = [part for part in module.modules() if getattr(part, "batch_first", None) is False]
    handles = [part.register_forward_pre_hook(note, with_kwargs=True) for part in parts]
    try:
        yield shapes
    finally:
        for handle in handles:
            handle.remove()


def steps_vary_with_batch(shapes: Sequence[Shape]) -> bool:
    """Return whether the steps of a layer's input changed between runs at two batch sizes, and its samples did not."""
    half = len(shapes) // 2
    pairs = zip(shapes[:half], shapes[half:], strict=False)
    return any(one[0] != other[0] and one[1] == other[1] for one, other in pairs)


def _leaves(inputs: Any) -> list[torch.Tensor]:  # torch's tree of tensors
    return [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.dim()]
