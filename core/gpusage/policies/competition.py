"""Which GPU generation a job prefers, compared with recent jobs: fast GPUs go to the jobs that gain most from them.

The more GPUs of a fast generation are free, the less a job must gain to prefer it. While all of them are free, hardly
any job gives way. The last free one is left to others by the jobs with the least gain: by those that would get slower
GPUs if all jobs were ranked by gain, and only by half of these, because predicted gains do not rank jobs truly.

Invariants:

1. A job gives way only where a GPU of a slower generation is free for it now.
2. A job that gains more never gives way where one that gains less would not.

Source:
    Takayama et al., "Deep Learning Workload Analysis for Efficient Resource Allocation", "Priority Assignment".
    docs/decisions/policies.md has what was tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from gpusage.policies.place import step_time_s
from gpusage.predictors.intervals import speedup
from gpusage_hooks.types import Candidate

LEAST_JOBS = 8
"""With fewer recent jobs, one per user, no job is ranked."""
TRUSTED_PART = 0.5
"""The part of the jobs ranked to give way that do so; docs/decisions/policies.md has other values."""
JobSpeeds = Mapping[str, float]
"""As in `Cluster.recent_jobs`."""


def preferred(where: Sequence[Candidate], recent_jobs: Sequence[JobSpeeds]) -> list[Candidate]:
    """Return the places to try first, fastest first: of the fastest generation with room not left to *recent_jobs*.

    None where that is unknown: recent jobs are too few, or fewer than two generations have room.

    Args:
        where: The places on which the job fits.
        recent_jobs: As in `Cluster.recent_jobs`.
    """
    generations = _generations([place for place in where if place.pool.feature is not None])
    roomy = [places for places in generations if _free_count(places)]
    for faster, slower in pairwise(roomy):
        gains = [gain for speeds in recent_jobs if (gain := _gain(speeds, faster, slower)) is not None]
        if len(gains) < LEAST_JOBS:
            return []
        others = sum(_gpu_count(places) for places in generations[generations.index(faster) + 1 :])
        if not gives_way(_own_gain(faster, slower), gains, least_rank(_free_count(faster), _gpu_count(faster), others)):
            return faster
    return roomy[-1] if len(roomy) > 1 else []


def gives_way(gain: float, gains: Sequence[float], least: float) -> bool:
    """Return whether a job that gains so much on a fast GPU leaves it to jobs like those of *gains*.

    Args:
        gain: Time on the slower GPU over time on the faster one.
        gains: The same for each recent job; at least one.
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


def reason(chosen: Sequence[Candidate], where: Sequence[Candidate]) -> str:
    """Return why the job prefers the *chosen* of the places *where* it fits."""
    best = chosen[0]
    others = [place for place in where if place not in chosen]
    fastest = min(others, key=step_time_s)
    if step_time_s(fastest) < step_time_s(best):
        gain = speedup(fastest.need, best.need)
        return f"{gain.value:.2f}x on {fastest.name}, which is left to recent jobs that gain more"
    gain = speedup(best.need, max(others, key=step_time_s).need)
    return f"{gain.value:.2f}x ({gain.low:.2f}-{gain.high:.2f}) on {best.name}, enough compared with recent jobs"


def _generations(where: Sequence[Candidate]) -> list[list[Candidate]]:
    """Return *where* by generation, the fastest first, and so the places of each."""
    ordered = sorted(where, key=step_time_s)
    names = dict.fromkeys(place.gpu.generation for place in ordered)
    return [[place for place in ordered if place.gpu.generation == name] for name in names]


def _gain(speeds: JobSpeeds, faster: Sequence[Candidate], slower: Sequence[Candidate]) -> float | None:
    """Return what *speeds* gains on the one generation over the other; ``None`` where it does not fit on both."""
    there, else_where = (
        [speeds[place.name] for place in places if place.name in speeds] for places in (faster, slower)
    )
    return min(else_where) / min(there) if there and else_where else None


def _own_gain(faster: Sequence[Candidate], slower: Sequence[Candidate]) -> float:
    return step_time_s(slower[0]) / step_time_s(faster[0])


def _free_count(places: Sequence[Candidate]) -> int:
    return sum(place.pool.free_gpu_count for place in places)


def _gpu_count(places: Sequence[Candidate]) -> int:
    return sum(place.pool.gpu_count for place in places)
