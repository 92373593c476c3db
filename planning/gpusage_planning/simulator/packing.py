"""Which jobs to put on one GPU: by their utilizations, or by what a set would do together.

The first way is Yeung's. The second is KACE's beyond pairs: a job joins the set to whose throughput it adds most, if
nobody in the set becomes slower than was promised.

Source:
    Yeung et al., "Towards GPU Utilization Prediction for Cloud Deep Learning", HotCloud 2020.
    Han et al., "KACE", SoCC 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpusage.policies.share_price import MOST_GPU_TIME

MOST_JOBS = 3
"""On one GPU, as in Yeung et al."""
LEAST_ADDED = 1 / MOST_GPU_TIME - 1
"""Throughput that a job must add to a set, in parts of a whole GPU: a share must save as much (`price`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one job takes of a GPU: its busy share (0 to 1) and its memory."""

    utilization: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What one GPU has for the jobs on it."""

    memory_bytes: float
    utilization: float = 1.0
    jobs: int = MOST_JOBS


def fits(loads: Sequence[Load], room: Room) -> bool:
    """Return whether *loads* may run on one GPU together; one alone may have all of its time."""
    busy = sum(load.utilization for load in loads)
    memory_bytes = sum(load.memory_bytes for load in loads)
    few = len(loads) <= 1 or busy <= room.utilization + 1e-9
    return few and len(loads) <= room.jobs and memory_bytes <= room.memory_bytes


def added(before: Sequence[float], after: Sequence[float], accepted_slowdown: float) -> float | None:
    """Return what a job adds to the throughput of a set, in parts of a whole GPU; ``None`` where it must not join.

    Args:
        before: Throughput of each job of the set, relative to running alone.
        after: The same with the newcomer.
        accepted_slowdown: How many times as long a step of any of them may take.
    """
    gain = sum(after) - sum(before)
    slowest = min(after)
    return gain if slowest * accepted_slowdown >= 1 and (not before or gain >= LEAST_ADDED) else None
