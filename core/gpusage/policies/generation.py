"""The stage ``generation``: new GPUs for the jobs that gain most from them, older ones for the others.

Where recent jobs are known, a job is compared with them: the more GPUs of a fast generation are free, the less a job
must gain to prefer it. While all of them are free, hardly any job gives way. The last free one is left to others by the
jobs with the least gain: by those that would get slower GPUs if all jobs were ranked by gain, and only by half of
these, because predicted gains do not rank jobs truly. Otherwise the site's threshold decides: of the GPU types on which
the job runs about as fast as on the fastest, it prefers the oldest generation.

Invariants:

1. A GPU is only preferred, never waited for: a job gives way only where one of a slower generation is free for it now.
2. A job that gains more never gives way where one that gains less would not.

Source:
    Takayama et al., "Deep Learning Workload Analysis for Efficient Resource Allocation", "Priority Assignment".
    docs/decisions/policies.md has what was tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from gpusage.devices.precisions import missing_units
from gpusage.policies.candidates import (
    admitted_candidates,
    preferable_types,
    rankable_candidates,
    step_time_s,
    type_names,
)
from gpusage.predictors.intervals import speedup
from gpusage_hooks.types import Candidate, Decision, Interval, PolicyInput, Precision

LEAST_JOBS = 8
"""With fewer recent jobs, one per user, no job is ranked."""
TRUSTED_PART = 0.5
"""The part of the jobs ranked to give way that do so; docs/decisions/policies.md has other values."""
JobSpeeds = Mapping[str, float]
"""As in `Cluster.recent_jobs`."""


def decide_generation(policy_input: PolicyInput, draft: Decision) -> Decision | None:
    """Prefer the oldest generation that is nearly as fast as the fastest; a type that the user named is kept."""
    rules = policy_input.rules.generation
    if not rules.enabled or policy_input.request.gpu_type is not None or draft.request.preferred_gpus:
        return None

    where = rankable_candidates(policy_input)
    compared = preferred_among_jobs(where, policy_input.cluster.recent_jobs) if rules.by_recent_jobs else []
    chosen = compared or preferred_by_threshold(where, rules.minimum_speedup)

    # A preference is worth words only where the job could land on something worse.
    worse = [
        candidate
        for candidate in admitted_candidates(policy_input)
        if candidate not in chosen and (candidate in where or not candidate.need.fits)
    ]
    if not chosen or not worse:
        return None
    request = replace(draft.request, preferred_gpus=preferable_types(chosen))
    reason = (
        _reason_among_jobs(chosen, where)
        if compared
        else _reason_by_threshold(chosen, where, policy_input.workload.precision)
    )
    return replace(draft, request=request, reasons=(*draft.reasons, reason), plugin=__name__, need=chosen[0].need)


def preferred_by_threshold(where: Sequence[Candidate], minimum_speedup: float) -> list[Candidate]:
    """Return the candidates to try first, fastest first; none if the predictions do not distinguish them.

    Args:
        where: The candidates on which the job fits.
        minimum_speedup: From this gain on, a faster GPU is worth preferring.
    """
    if not where:
        return []
    fastest = min(where, key=step_time_s)
    near = [each for each in where if step_time_s(each) < step_time_s(fastest) * minimum_speedup] or [fastest]
    oldest = min(near, key=lambda candidate: candidate.gpu.launch_year)

    # To pass over a GPU that is as old or older, the whole interval of the gain must be above 1.
    passed_over = [each for each in where if each not in near and each.gpu.launch_year <= oldest.gpu.launch_year]
    if any(speedup(fastest.need, each.need).low <= 1.0 for each in passed_over):
        return []
    chosen = [each for each in near if each.gpu.generation == oldest.gpu.generation and each.pool.feature is not None]
    return sorted(chosen, key=step_time_s)


def _reason_by_threshold(chosen: Sequence[Candidate], where: Sequence[Candidate], precision: Precision) -> str:
    """Return what the job gains on the chosen GPUs, or how little it would gain on newer ones.

    Where the slowest GPU has no units for the job's *precision*, the gain says so.
    """
    best = chosen[0]
    others = [candidate for candidate in where if candidate not in chosen]
    if not others:
        return f"fits on {type_names(chosen)}"

    fastest = min(others, key=step_time_s)
    if fastest.gpu.launch_year > best.gpu.launch_year or step_time_s(fastest) < step_time_s(best):
        gain = speedup(fastest.need, best.need)
        return f"only {_times(gain)} on {fastest.name}, which is left to jobs that gain more"

    slowest = max(others, key=step_time_s)
    missing = missing_units(slowest.gpu, precision)
    without = f", which has no units for {missing}" if missing else ""
    return f"{_times(speedup(best.need, slowest.need))} on {best.name} against {slowest.name}{without}"


def _times(gain: Interval) -> str:
    return f"{gain.value:.2f}x ({gain.low:.2f}-{gain.high:.2f})"


def preferred_among_jobs(where: Sequence[Candidate], recent_jobs: Sequence[JobSpeeds]) -> list[Candidate]:
    """Return the candidates to try first, fastest first: those of the fastest generation that the job does not leave.

    None where that is unknown: recent jobs are too few, or fewer than two generations have room.

    Args:
        where: The candidates on which the job fits.
        recent_jobs: As in `Cluster.recent_jobs`.
    """
    ordered = sorted((candidate for candidate in where if candidate.pool.feature is not None), key=step_time_s)
    by_generation: dict[str, list[Candidate]] = {}
    for candidate in ordered:  # so the fastest generation is first, and the fastest of each
        by_generation.setdefault(candidate.gpu.generation, []).append(candidate)
    generations = list(by_generation.values())
    roomy = [candidates for candidates in generations if _free_count(candidates)]

    for faster, slower in pairwise(roomy):
        gains = [gain for speeds in recent_jobs if (gain := _gain(speeds, faster, slower)) is not None]
        if len(gains) < LEAST_JOBS:
            return []
        own_gain = step_time_s(slower[0]) / step_time_s(faster[0])
        slower_count = sum(_gpu_count(candidates) for candidates in generations[generations.index(faster) + 1 :])
        if not gives_way(own_gain, gains, least_rank(_free_count(faster), _gpu_count(faster), slower_count)):
            return faster
    return roomy[-1] if len(roomy) > 1 else []


def gives_way(gain: float, gains: Sequence[float], least: float) -> bool:
    """Return whether a job that gains so much on a fast GPU leaves it to jobs like those of *gains*.

    Its rank is the mid-rank: equal gains count half, so that of equal jobs all give way or none.

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


def _reason_among_jobs(chosen: Sequence[Candidate], where: Sequence[Candidate]) -> str:
    """Return why the job prefers the *chosen* of the candidates *where* it fits."""
    best = chosen[0]
    others = [candidate for candidate in where if candidate not in chosen]
    fastest = min(others, key=step_time_s)
    if step_time_s(fastest) < step_time_s(best):
        gain = speedup(fastest.need, best.need)
        return f"{gain.value:.2f}x on {fastest.name}, which is left to recent jobs that gain more"
    gain = speedup(best.need, max(others, key=step_time_s).need)
    return f"{_times(gain)} on {best.name}, enough compared with recent jobs"


def _gain(speeds: JobSpeeds, faster: Sequence[Candidate], slower: Sequence[Candidate]) -> float | None:
    """Return what *speeds* gains on the one generation over the other; ``None`` where it does not fit on both."""
    on_faster = [speeds[candidate.name] for candidate in faster if candidate.name in speeds]
    on_slower = [speeds[candidate.name] for candidate in slower if candidate.name in speeds]
    return min(on_slower) / min(on_faster) if on_faster and on_slower else None


def _free_count(candidates: Sequence[Candidate]) -> int:
    return sum(candidate.pool.free_gpu_count for candidate in candidates)


def _gpu_count(candidates: Sequence[Candidate]) -> int:
    return sum(candidate.pool.gpu_count for candidate in candidates)
