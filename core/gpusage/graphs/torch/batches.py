"""Which size of a module's inputs is the batch; imported only with PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from gpusage_hooks.types import Shape

_META = torch.device("meta")
_PICTURE_RANK = 3
"""Channels, height and width of one picture."""
_SEQUENCES_RANK = 3
"""Steps, samples and width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The batch of a module's example inputs.

    Attributes:
        size: How many samples they hold.
        place: Which of their sizes it is: 0, or 1 behind the steps of a sequence.
    """

    size: int
    place: int = 0


def batch_of(inputs: Any, place: int = 0) -> Batch | None:  # noqa: ANN401 - torch's tree of tensors
    """Return the batch: of the first tensor in *inputs* that has features, else of the first; None where none has."""
    leaves = _leaves(inputs)
    leads = [leaf for leaf in leaves if leaf.dim() > 1] or leaves
    return Batch(size=int(leads[0].shape[place]), place=place) if leads and leads[0].dim() > place else None


def resized(inputs: Any, batch: Batch, size: int) -> Any:  # noqa: ANN401 - torch's tree of tensors
    """Return *inputs* on the meta device with *size* samples: each size that is the batch by its place is replaced."""

    def resize(leaf: Any) -> Any:  # noqa: ANN401 - a leaf may be anything
        if not isinstance(leaf, torch.Tensor):
            return leaf
        sizes = list(leaf.shape)
        places = [place for place in range(batch.place, -1, -1) if sizes[place : place + 1] == [batch.size]]
        for place in places[:1]:
            sizes[place] = size
        return torch.empty(sizes, dtype=leaf.dtype, device=_META)

    return tree_map(resize, inputs)


def sample_count(arguments: Sequence[Any], batch: Batch) -> int:
    """Return how many samples inputs hold that a module takes at their own sizes alone.

    Pictures in a list are one each, and a tensor of one size alone is one sample.
    """
    first = arguments[0] if arguments else None
    if isinstance(first, (list, tuple)) and first:
        pictures = [leaf for leaf in first if isinstance(leaf, torch.Tensor) and leaf.dim() == _PICTURE_RANK]
        return len(first) if len(pictures) == len(first) else batch.size
    is_one = all(leaf.dim() == 1 for leaf in _leaves(arguments))
    return 1 if arguments and is_one else batch.size


@contextmanager
def watched(module: torch.nn.Module) -> Iterator[list[Shape]]:
    """Collect the steps and samples that each layer with ``batch_first=False`` reads."""
    shapes: list[Shape] = []

    def note(_: torch.nn.Module, arguments: tuple[Any, ...], words: dict[str, Any]) -> None:
        first = arguments[0] if arguments else words.get("query", words.get("input"))
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


def steps_follow(shapes: Sequence[Shape]) -> bool:
    """Tell whether a layer took the batch for its steps, by what it read in a run and in another at another batch."""
    half = len(shapes) // 2
    pairs = zip(shapes[:half], shapes[half:], strict=False)
    return any(one[0] != other[0] and one[1] == other[1] for one, other in pairs)


def _leaves(inputs: Any) -> list[torch.Tensor]:  # noqa: ANN401 - torch's tree of tensors
    return [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.dim()]
