"""What can be known of a job before it runs: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpusage_hooks.types import Interval
from gpusage_hooks.units import WHOLE_PERCENT

MANY_RUNS = 5
"""So many runs alone on one whole GPU outweigh what a user says."""

Place = tuple[str, int]
"""A GPU, and the percentage of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What earlier runs of one job showed.

    Attributes:
        run_count: How many there were that count.
        utilization: Alone, by GPU and percentage; the counts are in *utilization_runs*.
        utilization_runs: How many runs each rests on.
        slowdown: By GPU and percentage below 100, the duration against that on the whole GPU; at least 1.
        memory_bytes: The peak, and how far it may go.
    """

    run_count: int
    utilization: Mapping[Place, Interval]
    utilization_runs: Mapping[Place, int]
    slowdown: Mapping[Place, float]
    memory_bytes: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """How busy jobs of one kind were.

    Attributes:
        job_count: How many jobs it rests on.
        ratio: Of observed over predicted utilization.
    """

    job_count: int
    ratio: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is known of a job before it runs.

    Attributes:
        experience: Of its own earlier runs, or of its model's.
        whose: Whose runs these were, for people: ``earlier runs``.
        habit: Of its kind, where it never ran.
    """

    experience: Experience | None = None
    whose: str = ""
    habit: Habit | None = None


NOTHING = Finding()


def contradicts(experience: Experience, told: float | None) -> bool:
    """Tell whether many runs on whole GPUs, as *experience* has them, rule out the utilization that a user *told*.

    Nothing that was told of these runs, ``None``, is ruled out by many.
    """
    many = [
        utilization
        for place, utilization in experience.utilization.items()
        if place[1] == WHOLE_PERCENT and experience.utilization_runs[place] >= MANY_RUNS
    ]
    return bool(many) and not any(told is not None and each.low <= told <= each.high for each in many)
