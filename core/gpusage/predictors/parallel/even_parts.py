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
    rule = f"Model {graph.name!r} must have as many {part} on each of its GPUs"
    own = " and ".join(map(str, sorted(counts)))
    message = f"{rule}; got {own} {part}, {gpu_count} GPUs. {divisor_advice(key, gcd(*counts))}."
    raise GraphError(message)


def divisor_advice(key: str, count: int) -> str:
    """Return, as an imperative, the values above 1 of *key* that divide *count*; without one, to remove *key*."""
    divisors = [str(one) for one in range(2, min(count, MAXIMUM_LISTED) + 1) if count % one == 0]
    if len(divisors) > 1:
        return f"Write '{key}=N' with N one of {', '.join(divisors)}"
    return f"Write '{key}={divisors[0]}'" if divisors else f"Remove {key!r}"


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
