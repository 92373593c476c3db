"""Whether a model has as much for each of the GPUs that divide it: heads, experts, or layers; else a refusal."""

from __future__ import annotations

from collections.abc import Collection
from math import gcd

from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

MAXIMUM_LISTED = 64
"""Numbers of GPUs that an error names go up to this one."""


def require_even_parts(graph: ModelGraph, part: str, counts: Collection[int], gpu_count: int, *, key: str) -> None:
    """See that *gpu_count* GPUs, which *key* of the job says, can divide each of *counts* evenly.

    Args:
        graph: The model.
        part: What is counted, in words.
        counts: How many *graph* has of it, in each of its layers; at least one number.
        gpu_count: Each of them has as many.
        key: Of the job.

    Raises:
        GraphError: They cannot.
    """
    if not any(count % gpu_count for count in counts):
        return
    common = gcd(*counts)
    most = [str(count) for count in range(2, min(common, MAXIMUM_LISTED) + 1) if common % count == 0]
    cure = f"Remove {key!r}"
    if most:
        cure = f"Write '{key}=N' with N one of {', '.join(most)}" if most[1:] else f"Write '{key}={most[0]}'"
    rule = f"Model {graph.name!r} must have as many {part} on each of its GPUs"
    message = f"{rule}; got {' and '.join(map(str, sorted(counts)))} {part}, {gpu_count} GPUs. {cure}."
    raise GraphError(message)


def require_a_layer_for_each(graph: ModelGraph, layer_count: int, gpu_count: int, *, key: str) -> None:
    """See that each of *gpu_count* GPUs, which *key* of the job says, has a layer of *graph*.

    Raises:
        GraphError: There are fewer layers.
    """
    if layer_count < gpu_count:
        cure = f"Write '{key}={layer_count}' or less" if layer_count > 1 else f"Remove {key!r}"
        message = (
            f"Model {graph.name!r} must have a layer for each part of its pipeline; got {layer_count} layers, "
            f"{key}={gpu_count}. {cure}."
        )
        raise GraphError(message)
