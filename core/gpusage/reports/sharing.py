"""What a share would have cost a run that had a whole GPU, by what was decided of it or by what its node saw.

Invariants:

1. A run that nobody saw alone on its GPU, or not to its end, could not have shared as far as anybody knows.
2. Nothing shows how a run's kernels grow on fewer SMs, so they are taken to grow as much as they can, as where history
   decides. Where a share was decided by the job's model, the price is the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpusage.experience.finished_jobs import LEAST_SAMPLED_S, SOUND, own_utilization
from gpusage.experience.learning import MEMORY_MARGINS
from gpusage.experience.unnamed_jobs import gpu_need, share_prices
from gpusage.policies.shares.price import can_promise, limits, offers, priced_percents
from gpusage.predictors.intervals import exactly
from gpusage.reports.amounts import amounts_of, expected_slowdown, gpu_count, was_share_withheld
from gpusage.store.usage_rows import Observation
from gpusage_hooks.types import (
    Candidate,
    Figure,
    Gpu,
    GpuPool,
    GpuRequest,
    Interval,
    ObservedFigures,
    SharingRules,
)
from gpusage_hooks.units import WHOLE_PERCENT

GpuLookup = Callable[[str], Gpu | None]
"""From the name of a GPU to its row of the catalogue."""


def nowhere(_: str) -> Gpu | None:
    """Know no GPU."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PossibleShare:
    """A share that would have been enough for a run.

    Attributes:
        share_percent: Its size.
        slowdown: How many times as long the run would have taken, beside average partners.
    """

    share_percent: int
    slowdown: float

    @property
    def gpu_time(self) -> float:
        """Return the GPU time on the share, against that of the whole GPU."""
        return self.share_percent / WHOLE_PERCENT * self.slowdown


@dataclass(frozen=True, slots=True, kw_only=True)
class PossibleShares:
    """What shares would have saved, and at what price.

    Attributes:
        job_count: Jobs that could have shared.
        booked_hours: The GPU hours that they booked.
        saved_hours: What shares would have left to others.
        slowdown_low: The lowest price among them: how many times as long the run would have taken.
        slowdown_high: The highest.
    """

    job_count: int
    booked_hours: float
    saved_hours: float
    slowdown_low: float
    slowdown_high: float


def count_possible_shares(
    observations: Iterable[Observation], rules: SharingRules, find_gpu: GpuLookup, least_s: float = LEAST_SAMPLED_S
) -> PossibleShares | None:
    """Return what shares would have saved of *observations*; ``None`` where none could have shared."""
    jobs, booked, saved, slowdowns = set[tuple[str, str]](), 0.0, 0.0, list[float]()
    for each in observations:
        share = possible_share(each, rules, find_gpu, least_s)
        if share is not None:
            hours = amounts_of(each, least_s).booked
            jobs.add((each.usage.manager, each.usage.job_id))
            booked, saved = booked + hours, saved + hours * (1 - share.gpu_time)
            slowdowns.append(share.slowdown)
    if not jobs:
        return None
    return PossibleShares(
        job_count=len(jobs),
        booked_hours=booked,
        saved_hours=saved,
        slowdown_low=min(slowdowns),
        slowdown_high=max(slowdowns),
    )


def possible_share(
    observed: Observation, rules: SharingRules, find_gpu: GpuLookup, least_s: float = LEAST_SAMPLED_S
) -> PossibleShare | None:
    """Return the share with the least GPU time that the site's *rules* would promise; ``None`` where there is none."""
    record = observed.decision
    if record is not None and was_share_withheld(observed):
        size = record.decision.request.mps_thread_percent or WHOLE_PERCENT
        return PossibleShare(share_percent=size, slowdown=expected_slowdown(observed))
    place = _place(observed, rules, find_gpu, least_s)
    if place is None:
        return None
    request = record.decision.request if record else GpuRequest(gpu_count=1)
    within = limits(rules, record.workload.slowdown if record and record.workload else None)
    promised = [offer for offer in offers([place], request, rules) if can_promise(offer, within)]
    shares = [PossibleShare(share_percent=each.share_percent, slowdown=each.slowdown.value) for each in promised]
    return min(shares, key=lambda share: share.gpu_time, default=None)


def _place(observed: Observation, rules: SharingRules, find_gpu: GpuLookup, least_s: float) -> Candidate | None:
    """Return the run's GPU with what it needed there; ``None`` where that is not one whole GPU, or was not seen."""
    usage = observed.usage
    has_whole_gpu = usage.granted.division == "whole" and usage.granted.share_percent == WHOLE_PERCENT
    is_seen = usage.outcome in SOUND and own_utilization(usage, least_s) is not None
    gpu = find_gpu(usage.gpu) if has_whole_gpu and is_seen and gpu_count(observed) == 1 else None
    if gpu is None or gpu.parent_gpu is not None or not usage.memory_bytes or usage.peak_utilization is None:
        return None
    memory = Interval(value=usage.memory_bytes, low=usage.memory_bytes, high=MEMORY_MARGINS[0] * usage.memory_bytes)
    known = ObservedFigures(
        gpu_utilization=Figure(interval=exactly(usage.peak_utilization), source=""),
        memory_bytes=Figure(interval=memory, source=""),
    )
    need = gpu_need(known, gpu)
    if need is None:
        return None
    pool = GpuPool(gpu=gpu.name, site_type=gpu.name, gpu_count=1, free_gpu_count=1)
    return Candidate(pool=pool, gpu=gpu, need=need, shares=share_prices(need, priced_percents(rules)))
