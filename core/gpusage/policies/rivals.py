"""Which GPU generation a job prefers among the jobs of late: the fast GPUs go to those that gain most from them.

The more GPUs of a fast generation are free, the less must a job gain to prefer it. With all of them free hardly anybody
gives way. The last one is left free by those jobs, of the least gain, for which slower GPUs would be there if all jobs
were put in order; by half of them only, because predicted gains do not put them in the true order.

Invariants:

1. A job gives way only where a GPU of a slower generation is free for it now.
2. Who gains more never gives way where one that gains less would not.

Source:
    Takayama et al., "Deep Learning Workload Analysis for Efficient Resource Allocation", "Priority Assignment".
    docs/decisions/0038 has what was tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from gpusage.policies.place import step_time_s
from gpusage.predictors.times.speedups import speedup
from gpusage_hooks.types import Place

LEAST_RIVALS = 8
"""Of fewer jobs no rank is taken."""
TRUSTED_PART = 0.5
"""Of the jobs that would give way by their true gains; docs/decisions/0038 has other values."""
Rival = Mapping[str, float]
"""As in `Cluster.rivals`."""


def preferred(where: Sequence[Place], rivals: Sequence[Rival]) -> list[Place]:
    """Return the places to try first, fastest first: the fastest generation with room that is not left to *rivals*.

    None where that cannot be told: rivals are too few, or fewer than two generations have room.

    Args:
        where: The places on which the job fits.
        rivals: As in `Cluster.rivals`.
    """
    generations = _generations([place for place in where if place.pool.feature is not None])
    roomy = [places for places in generations if _free_count(places)]
    for faster, slower in pairwise(roomy):
        gains = [gain for rival in rivals if (gain := _gain(rival, faster, slower)) is not None]
        if len(gains) < LEAST_RIVALS:
            return []
        others = sum(_gpu_count(places) for places in generations[generations.index(faster) + 1 :])
        if not gives_way(_own_gain(faster, slower), gains, least_rank(_free_count(faster), _gpu_count(faster), others)):
            return faster
    return roomy[-1] if len(roomy) > 1 else []


def gives_way(gain: float, gains: Sequence[float], least: float) -> bool:
    """Tell whether a job that gains so much on a fast GPU leaves it to jobs like those of *gains*.

    Args:
        gain: Time on the slower GPU over time on the faster one.
        gains: The same of the jobs of late; at least one.
        least: As `least_rank` returns it.
    """
    below, alike = sum(each < gain for each in gains), sum(each == gain for each in gains)
    return (below + alike / 2) / len(gains) < least


def least_rank(free_count: int, gpu_count: int, slower_count: int) -> float:
    """Return which part of the jobs must gain less than one that takes a fast GPU; 0 to 1.

    Args:
        free_count: Of the fast GPUs, those that nobody uses, at least one.
        gpu_count: All of the fast GPUs.
        slower_count: All GPUs that are slower for the job.
    """
    busy_with_it = 1 - (free_count - 1) / gpu_count
    return TRUSTED_PART * slower_count / (slower_count + gpu_count) * min(busy_with_it, 1.0)


def reason(chosen: Sequence[Place], where: Sequence[Place]) -> str:
    """Say why the job prefers the *chosen* of the places *where* it fits."""
    best = chosen[0]
    others = [place for place in where if place not in chosen]
    fastest = min(others, key=step_time_s)
    if step_time_s(fastest) < step_time_s(best):
        gain = speedup(fastest.need, best.need)
        return f"{gain.value:.2f}x on {fastest.name}, which is left to jobs that gain more of late"
    gain = speedup(best.need, max(others, key=step_time_s).need)
    return f"{gain.value:.2f}x ({gain.low:.2f}-{gain.high:.2f}) on {best.name}, enough beside what jobs of late gain"


def _generations(where: Sequence[Place]) -> list[list[Place]]:
    """Return *where* by generation, the fastest first, and so the places of each."""
    ordered = sorted(where, key=step_time_s)
    names = dict.fromkeys(place.gpu.generation for place in ordered)
    return [[place for place in ordered if place.gpu.generation == name] for name in names]


def _gain(rival: Rival, faster: Sequence[Place], slower: Sequence[Place]) -> float | None:
    """Return what *rival* gains on the one generation over the other; ``None`` where it does not fit on both."""
    there, else_where = ([rival[place.name] for place in places if place.name in rival] for places in (faster, slower))
    return min(else_where) / min(there) if there and else_where else None


def _own_gain(faster: Sequence[Place], slower: Sequence[Place]) -> float:
    return step_time_s(slower[0]) / step_time_s(faster[0])


def _free_count(places: Sequence[Place]) -> int:
    return sum(place.pool.free_gpu_count for place in places)


def _gpu_count(places: Sequence[Place]) -> int:
    return sum(place.pool.gpu_count for place in places)
