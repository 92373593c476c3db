"""Which GPUs the oldest waiting job can have first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpusage_planning.simulator.fleet import Fleet

Moments = npt.NDArray[np.float64]


def earliest(empty_at_s: Moments, fleet: Fleet, types: Sequence[int], count: int) -> tuple[list[int], float]:
    """Return *count* GPUs of one of *types* that will be empty first, and when they all are.

    They stand on as few nodes as can be, unless jobs are spread.

    Args:
        empty_at_s: When each GPU of the fleet is expected to be empty.
        fleet: One of *types* has so many GPUs.
        types: Of GPUs; the first one among equals is taken.
        count: At least 1.
    """
    choices = []
    for place, gpu_type in enumerate(types):
        start, one = fleet.starts[gpu_type], fleet.types[gpu_type]
        if one.gpu_count >= count:
            own = empty_at_s[start : start + one.gpu_count]
            first = _packed_gpus(own.reshape(-1, one.gpu_count if fleet.spreads_jobs else one.node_gpu_count), count)
            choices.append((float(own[first].max()), place, [start + gpu for gpu in first]))
    at_s, _, gpus = min(choices)
    return gpus, at_s


def _packed_gpus(by_node: Moments, count: int) -> list[int]:
    """Return *count* GPUs by number: the whole nodes that will be empty first, and the rest on one more."""
    per_node = by_node.shape[1]
    whole, rest = divmod(count, per_node)
    nodes = np.argsort(by_node.max(axis=1), kind="stable")[:whole]
    gpus = [int(node) * per_node + gpu for node in nodes for gpu in range(per_node)]
    if rest:
        at_s = np.partition(by_node, rest - 1, axis=1)[:, rest - 1]
        at_s[nodes] = np.inf
        node = int(at_s.argmin())
        own = by_node[node]
        first = [int(own.argmin())] if rest == 1 else np.argpartition(own, rest - 1)[:rest].tolist()
        gpus += [node * per_node + gpu for gpu in first]
    return gpus
