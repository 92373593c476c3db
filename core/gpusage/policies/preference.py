"""The stages ``deadline`` and ``generation``: which GPU types a job prefers.

A job with a deadline prefers the cheapest types that end it in time. Its run is assumed to start now, and to take the
pessimistic end of its time: nobody knows how long the job will wait.

New GPUs are for the jobs that gain most from them, older ones for the others. Where recent jobs are known, a job is
compared with them: the more GPUs of a fast generation are free, the less a job must gain to prefer it. While all of
them are free, hardly any job gives way. The last free one is left to others by the jobs with the least gain: by those
that would get slower GPUs if all jobs were ranked by gain, and only by half of these, because predicted gains do not
rank jobs truly. Otherwise the site's threshold decides: of the GPU types on which the job runs about as fast as on the
fastest, it prefers the oldest generation.

Invariants:

1. A GPU is only preferred, never waited for: a job gives way only where one of a slower generation is free for it now.
2. A deadline holds no job to a type. Where the length of the run is not known, nothing makes the job slower.
3. A job that gains more never gives way where one that gains less would not.

Source:
    Takayama et al., "Deep Learning Workload Analysis for Efficient Resource Allocation", "Priority Assignment".
    docs/decisions/policies.md has what was tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from gpusage.devices.catalogue import name_key
from gpusage.devices.precisions import missing_units
from gpusage.policies.candidates import (
    admitted_candidates,
    preferable_types,
    rankable_candidates,
    step_time_s,
    type_names,
)
from gpusage.predictors.intervals import of_equal_inputs, scaled, speedup
from gpusage_hooks.types import Candidate, Decision, Gpu, GpuNeed, Interval, PolicyInput, Precision
from gpusage_hooks.units import HOUR_S, WHOLE_PERCENT

UNKNOWN_LENGTH = "it has a deadline, but its run time is unknown: write its number of steps, steps=100000"
LEAST_JOBS = 8
"""With fewer recent jobs, one per user, no job is ranked."""
TRUSTED_PART = 0.5
"""The part of the jobs ranked to give way that do so; docs/decisions/policies.md has other values."""
JobSpeeds = Mapping[str, float]
"""As in `Cluster.recent_jobs`."""


class Run(NamedTuple):
    """One run on one GPU, or a share of it.

    Attributes:
        cost: By the site's price; ``None`` where the GPU has none.
    """

    need: GpuNeed
    time_s: Interval
    cost: Interval | None

    @property
    def cost_order(self) -> tuple[bool, float]:
        """Return the sort key: runs with a price first, by it, and the others from the slowest on."""
        return (True, -self.time_s.value) if self.cost is None else (False, self.cost.value)

    def ends_within(self, deadline_s: float) -> bool:
        """Return whether it surely ends within *deadline_s* seconds."""
        return self.need.fits and self.time_s.high <= deadline_s


def run_of(need: GpuNeed, steps: int, price_per_hour: float | None) -> Run:
    """Return the run of *steps* with *need*; *price_per_hour* is the whole GPU's."""
    time_s = scaled(need.step_time_s, steps)
    if price_per_hour is None:
        return Run(need, time_s, None)
    return Run(need, time_s, scaled(time_s, price_per_hour * need.share_percent / WHOLE_PERCENT / HOUR_S))


def price(gpu: Gpu, price_per_hour: Mapping[str, float]) -> float | None:
    """Return the site's price of an hour of *gpu*, under any of its names; ``None`` where it has no price."""
    called = {name_key(name) for name in (gpu.name, *gpu.aliases)}
    return next((cost for name, cost in price_per_hour.items() if name_key(name) in called), None)


def latest_step_s(policy_input: PolicyInput) -> float | None:
    """Return how long a step may take so that the job of *policy_input* ends by its deadline; ``None`` for no limit."""
    deadline_s, steps = policy_input.request.deadline_s, policy_input.workload.steps
    return deadline_s / steps if deadline_s is not None and steps else None


def decide_deadline(policy_input: PolicyInput, draft: Decision) -> Decision | None:
    """Prefer the cheapest GPU type with room on which the run ends in time; where none has room, all such types."""
    request, rules = policy_input.request, policy_input.rules
    if latest_step_s(policy_input) is None or request.gpu_type is not None or not rules.generation.enabled:
        return None

    prices, steps = rules.money.price_per_hour, policy_input.workload.steps or 0
    where = rankable_candidates(policy_input)
    runs = {each.name: run_of(each.need, steps, price(each.gpu, prices)) for each in where}
    in_time = [each for each in where if runs[each.name].ends_within(request.deadline_s or 0)]

    # Where every GPU is in time and none has a price, the deadline is no reason to prefer one.
    if not where or (len(in_time) == len(where) and not any(run.cost for run in runs.values())):
        return None

    by_cost = sorted(in_time, key=lambda candidate: runs[candidate.name].cost_order)
    roomy = [candidate for candidate in by_cost if candidate.pool.has_room(WHOLE_PERCENT, request.gpu_count)][:1]
    if not in_time:
        chosen = [min(where, key=step_time_s)]
        reason = f"no GPU here certainly finishes it by its deadline; {chosen[0].name} is the fastest with a prediction"
    elif roomy:
        chosen = roomy
        kind = "slowest" if runs[roomy[0].name].cost is None else "cheapest"
        reason = f"{type_names(roomy)} is the {kind} with room now that ends it by its deadline"
    else:
        chosen = by_cost
        reason = f"ends by its deadline on {type_names(by_cost)}"

    preferred = preferable_types(chosen)
    if not preferred:  # none of them has a name that a job can request
        return None
    preferring = replace(draft.request, preferred_gpus=preferred)
    return replace(draft, request=preferring, reasons=(*draft.reasons, reason), plugin=__name__, need=chosen[0].need)


def decide_generation(policy_input: PolicyInput, draft: Decision) -> Decision | None:
    """Prefer the oldest generation that is nearly as fast as the fastest; a type that the user named is kept."""
    rules = policy_input.rules.generation
    if not rules.enabled or policy_input.request.gpu_type is not None or draft.request.preferred_gpus:
        return None

    needs = {each.name: each.need for each in policy_input.candidates}
    if policy_input.request.gpu_count > 1:
        policy_input = _of_equal_inputs(policy_input)

    # What another stage keeps the job off is no reason to prefer the rest.
    where, allowed = rankable_candidates(policy_input), admitted_candidates(policy_input)
    if draft.request.required_gpus:
        allowed = tuple(each for each in allowed if each.name in draft.request.required_gpus)
        where = tuple(each for each in where if each in allowed)
    # The threshold alone would leave an idle fast GPU unused by a job that gains a little less.
    jobs, count = policy_input.cluster.recent_jobs, policy_input.request.gpu_count
    compared = preferred_among_jobs(where, jobs, count) if rules.by_recent_jobs else []
    chosen = compared or preferred_by_threshold(where, rules.minimum_speedup)

    if not chosen:
        return None

    # A preference is worth words only where the job could land on something worse, not on its like without a feature.
    near_s = step_time_s(chosen[0]) * rules.minimum_speedup
    like = [each for each in where if each.gpu.generation == chosen[0].gpu.generation and step_time_s(each) < near_s]
    if all(each in chosen or each in like or (each.need.fits and each not in where) for each in allowed):
        return None
    request = replace(draft.request, preferred_gpus=preferable_types(chosen))
    reason = (
        _reason_among_jobs(chosen, where)
        if compared
        else _reason_by_threshold(chosen, where, policy_input.workload.precision)
    )
    need = needs[chosen[0].name]
    return replace(draft, request=request, reasons=(*draft.reasons, reason), plugin=__name__, need=need)


def _of_equal_inputs(policy_input: PolicyInput) -> PolicyInput:
    """Return *policy_input* with steps as if all GPUs of the job had equal inputs: others last longer on any type."""

    def of_equal(need: GpuNeed) -> GpuNeed:
        return replace(need, step_time_s=of_equal_inputs(need.step_time_s, policy_input.workload))

    candidates = tuple(replace(each, need=of_equal(each.need)) for each in policy_input.candidates)
    return replace(policy_input, candidates=candidates)


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
    """Return the job's gain on the chosen GPUs, or how little it would gain on newer GPUs.

    Where the slowest GPU has no units for the job's *precision*, the gain says so.
    """
    best = chosen[0]
    others = [candidate for candidate in where if candidate not in chosen]
    if not others:
        return f"fits on {type_names(chosen)}"

    fastest = min(others, key=step_time_s)
    gain = speedup(fastest.need, best.need)
    if gain.value > 1.0 or (fastest.gpu.launch_year > best.gpu.launch_year and gain.high > 1.0):
        return f"only {_times(gain)} on {fastest.name}, which is left to jobs that gain more"

    slowest = max(others, key=step_time_s)
    missing = missing_units(slowest.gpu, precision)
    without = f", which has no units for {missing}" if missing else ""
    return f"{_times(speedup(best.need, slowest.need))} on {best.name} against {slowest.name}{without}"


def _times(gain: Interval) -> str:
    return f"{gain.value:.2f}x ({gain.low:.2f}-{gain.high:.2f})"


def preferred_among_jobs(
    where: Sequence[Candidate], recent_jobs: Sequence[JobSpeeds], wanted_count: int = 1
) -> list[Candidate]:
    """Return the candidates to try first, fastest first: the fastest generation that the job does not leave to others.

    None where that is unknown: recent jobs are too few, or fewer than two generations have room.

    Args:
        where: The candidates on which the job fits.
        recent_jobs: As in `Cluster.recent_jobs`.
        wanted_count: GPUs of the job.
    """
    ordered = sorted((candidate for candidate in where if candidate.pool.feature is not None), key=step_time_s)
    by_generation: dict[str, list[Candidate]] = {}
    for candidate in ordered:  # so the fastest generation is first, and the fastest of each
        by_generation.setdefault(candidate.gpu.generation, []).append(candidate)
    generations = list(by_generation.values())
    roomy = [candidates for candidates in generations if _free_count(candidates) >= wanted_count]

    for faster, slower in pairwise(roomy):
        gains = []
        for speeds in recent_jobs:
            on_faster = [speeds[candidate.name] for candidate in faster if candidate.name in speeds]
            on_slower = [speeds[candidate.name] for candidate in slower if candidate.name in speeds]
            if on_faster and on_slower:  # a job that does not fit on both shows nothing
                gains.append(min(on_slower) / min(on_faster))
        if len(gains) < LEAST_JOBS:
            return []
        own_gain = step_time_s(slower[0]) / step_time_s(faster[0])
        slower_count = sum(_gpu_count(candidates) for candidates in generations[generations.index(faster) + 1 :])
        left_count = _free_count(faster) - wanted_count + 1
        if not gives_way(own_gain, gains, least_rank(left_count, _gpu_count(faster), slower_count)):
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
    """Return the part of the jobs that must gain less than a job that takes a fast GPU; 0 to 1.

    Args:
        free_count: Of the fast GPUs, those that nobody uses, at least one; a job of several leaves one of its own.
        gpu_count: All of the fast GPUs.
        slower_count: All GPUs that are slower for the job.
    """
    # With true gains the whole part would be better; predicted gains rank some jobs high that gain nothing.
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


def _free_count(candidates: Sequence[Candidate]) -> int:
    return sum(candidate.pool.free_gpu_count for candidate in candidates)


def _gpu_count(candidates: Sequence[Candidate]) -> int:
    return sum(candidate.pool.gpu_count for candidate in candidates)
