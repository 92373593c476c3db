"""The search for the largest batch that fits, on several GPUs at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from gpusage.graphs.model_files import DYNAMIC_BATCH
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

MOST = 2**30
"""No larger batch is looked for."""


def largest_batches(graph: ModelGraph, fits: Callable[[int], Sequence[bool]]) -> list[int]:
    """Return the largest batch of *graph* that fits, one entry per GPU; 0 where not even one sample does.

    The batch is doubled until it does not fit, and the last interval is then halved: some twenty questions for each
    GPU, many of which several GPUs share.

    Args:
        graph: The model.
        fits: Whether a batch of so many samples fits, one entry per GPU. A batch that is larger than one that does not
            fit must not fit either, which holds because more batch never needs less memory.

    Raises:
        GraphError: The model has a fixed batch.
    """
    if graph.fixed_batch_size is not None:
        message = (
            f"Model {graph.name!r} must have a free batch axis to look for its largest batch; "
            f"got one that was exported for a batch of {graph.fixed_batch_size}. {DYNAMIC_BATCH}."
        )
        raise GraphError(message)
    cached_fits = cache(fits)
    return [_largest(partial(_of_one, cached_fits, place)) for place in range(len(cached_fits(1)))]


def _of_one(fits: Callable[[int], Sequence[bool]], place: int, size: int) -> bool:
    return fits(size)[place]


def _largest(fits: Callable[[int], bool]) -> int:
    """Return the largest size that *fits*, from 0 to `MOST`."""
    too_many = 1
    while too_many <= MOST and fits(too_many):
        too_many *= 2
    most = too_many // 2
    while too_many - most > 1 and most < MOST:
        middle = (most + too_many) // 2
        most, too_many = (middle, too_many) if fits(middle) else (most, middle)
    return most
