"""Which GPU generation to prefer: new GPUs for the jobs that gain from them, older ones for the others.

Takayama et al. give the newest GPUs to the jobs that gain most. Where recent jobs are known, a job is compared with
them (`gpusage.policies.competition`). Otherwise the site's threshold decides: of the GPU types on which the job runs
about as fast as on the fastest, it prefers the oldest generation. A GPU is only preferred, never waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpusage.devices.precisions import missing_units
from gpusage.policies import competition
from gpusage.policies.place import admitted_candidates, preferable_types, rankable_candidates, step_time_s, type_names
from gpusage.predictors import intervals
from gpusage_hooks.types import Candidate, Decision, Interval, PolicyInput, Precision


def decide_generation(case: PolicyInput, draft: Decision) -> Decision | None:
    """Prefer the oldest generation that is nearly as fast as the fastest; a type that the user named is kept."""
    rules = case.rules.generation
    if not rules.enabled or case.request.gpu_type is not None or draft.request.preferred_gpus:
        return None
    where = rankable_candidates(case)
    competed = competition.preferred(where, case.cluster.recent_jobs) if rules.by_recent_jobs else []
    chosen = competed or preferred(where, rules.minimum_speedup)
    worse = [
        place for place in admitted_candidates(case) if place not in chosen and (place in where or not place.need.fits)
    ]
    if not chosen or not worse:
        return None
    request = replace(draft.request, preferred_gpus=preferable_types(chosen))
    reasons = (
        *draft.reasons,
        competition.reason(chosen, where) if competed else _reason(chosen, where, case.workload.precision),
    )
    return replace(draft, request=request, reasons=reasons, plugin=__name__, need=chosen[0].need)


def preferred(where: Sequence[Candidate], minimum_speedup: float) -> list[Candidate]:
    """Return the places to try first, fastest first; none if the predictions do not distinguish them.

    Args:
        where: The places on which the job fits.
        minimum_speedup: From this gain on, a faster GPU is worth preferring.
    """
    if not where:
        return []
    fastest = min(where, key=step_time_s)
    near = [place for place in where if step_time_s(place) < step_time_s(fastest) * minimum_speedup] or [fastest]
    oldest = min(near, key=lambda place: place.gpu.launch_year)
    passed_over = [place for place in where if place not in near and place.gpu.launch_year <= oldest.gpu.launch_year]
    if any(speedup(fastest, place).low <= 1.0 for place in passed_over):
        return []
    chosen = [place for place in near if place.gpu.generation == oldest.gpu.generation]
    return sorted((place for place in chosen if place.pool.feature is not None), key=step_time_s)


def speedup(of: Candidate, over: Candidate) -> Interval:
    """Return how many times as fast the job runs on the GPU *of* as on the GPU *over*."""
    return intervals.speedup(of.need, over.need)


def _reason(chosen: Sequence[Candidate], where: Sequence[Candidate], precision: Precision) -> str:
    """Return what the job gains on the chosen GPUs, or how little it would gain on newer ones.

    Where the slowest GPU has no units for the job's *precision*, the gain says so.
    """
    best = chosen[0]
    others = [place for place in where if place not in chosen]
    if not others:
        return f"fits on {type_names(chosen)}"
    fastest = min(others, key=step_time_s)
    if fastest.gpu.launch_year > best.gpu.launch_year or step_time_s(fastest) < step_time_s(best):
        return f"only {_times(speedup(fastest, best))} on {fastest.name}, which is left to jobs that gain more"
    slowest = max(others, key=step_time_s)
    missing = missing_units(slowest.gpu, precision)
    without = f", which has no units for {missing}" if missing else ""
    return f"{_times(speedup(best, slowest))} on {best.name} against {slowest.name}{without}"


def _times(gain: Interval) -> str:
    return f"{gain.value:.2f}x ({gain.low:.2f}-{gain.high:.2f})"
