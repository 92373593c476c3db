"""Which GPUs the oldest waiting job can have first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpusage_lab.simulator.fleet import Fleet


def earliest(
    empty_at_s: npt.NDArray[np.float64], fleet: Fleet, types: Sequence[int], count: int
) -> tuple[list[int], float]:
    """Return *count* GPUs of one of *types* that will be empty first, and when they all are.

    Args:
        empty_at_s: When each GPU of the fleet is expected to be empty.
        fleet: One of *types* has so many GPUs.
        types: Of GPUs; the first one among equals is taken.
        count: At least 1.
    """
    choices = []
    for place, gpu_type in enumerate(types):
        start, number = fleet.starts[gpu_type], fleet.types[gpu_type].gpu_count
        if number >= count:
            own = empty_at_s[start : start + number]
            first = [int(own.argmin())] if count == 1 else np.argpartition(own, count - 1)[:count].tolist()
            choices.append((float(own[first].max()), place, [start + gpu for gpu in first]))
    at_s, _, gpus = min(choices)
    return gpus, at_s
