"""Prices of shares that runs on whole GPUs could have had, from their decisions or their nodes' samples.

Invariants:

1. A run without samples alone on its GPU to its end, or its manager's own of it, counts as unable to share.
2. Samples do not show how kernels grow on fewer SMs, so the price assumes the most growth, as decisions by history do.
   A share that was decided by the job's model has the model's price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from types import MappingProxyType

import msgspec

from gpusage.devices.shares import memory_cap_bytes
from gpusage.experience.finished_jobs import LEAST_SAMPLED_S, SOUND, has_own_figures, own_utilization
from gpusage.experience.learning import MEMORY_MARGINS
from gpusage.experience.unnamed_jobs import gpu_need, share_prices
from gpusage.policies.share_price import can_promise, limits, offers, priced_percents
from gpusage.predictors.intervals import exact_interval
from gpusage.reports.amounts import expected_slowdown, gpu_count, had_whole_gpus, was_share_withheld
from gpusage.reports.jobs import count_jobs
from gpusage.store.rows import Observation
from gpusage_hooks.types import Candidate, Figure, Gpu, GpuPool, GpuRequest, ObservedFigures, SharingRules
from gpusage_hooks.units import WHOLE_PERCENT

GpuLookup = Callable[[str], Gpu | None]
"""From the name of a GPU to its row of the catalogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PossibleShare:
    """A share that would have been enough for a run.

    Attributes:
        share_percent: Size of the share.
        slowdown: Run time on the share beside average partners, over the run time on the whole GPU.
        worst_slowdown: Its upper end: 19 of 20 runs stay below.
    """

    share_percent: int
    slowdown: float
    worst_slowdown: float


class PossibleShares(msgspec.Struct, frozen=True, kw_only=True):
    """What possible shares would free and cost.

    Attributes:
        job_count: Jobs that could have shared.
        freed_hours: GPU hours that the shares would have freed, with one user's jobs on a GPU at a time.
        most_freed_hours: The same with any users' jobs.
        least_freed_hours: The first at the upper ends of the prices.
        slowdown_low: Lowest slowdown of a run.
        slowdown_high: Highest slowdown of a run.
        worst_slowdown: Highest upper end of one.
    """

    job_count: int
    freed_hours: float = 0.0
    most_freed_hours: float = 0.0
    least_freed_hours: float = 0.0
    slowdown_low: float
    slowdown_high: float
    worst_slowdown: float

    @staticmethod
    def joined(parts: Sequence[PossibleShares]) -> PossibleShares:
        """Return the sum of *parts*, which have no job in common and are at least one."""
        sums = ("job_count", "freed_hours", "most_freed_hours", "least_freed_hours")
        return PossibleShares(
            **{name: sum(getattr(each, name) for each in parts) for name in sums},
            slowdown_low=min(each.slowdown_low for each in parts),
            slowdown_high=max(each.slowdown_high for each in parts),
            worst_slowdown=max(each.worst_slowdown for each in parts),
        )


def count_possible_shares(shares: Iterable[tuple[Observation, PossibleShare]]) -> PossibleShares | None:
    """Return the sums of *shares*, each with its run; ``None`` without shares.

    What they free shows only beside all others of the period: see `gpusage.reports.freed`.
    """
    of_runs = [*shares]
    if not of_runs:
        return None
    # Hours are sums, as everywhere in a report; of prices a sum means nothing, so their range stands.
    slowdowns = [share.slowdown for _, share in of_runs]
    return PossibleShares(
        job_count=count_jobs(observed for observed, _ in of_runs),
        slowdown_low=min(slowdowns),
        slowdown_high=max(slowdowns),
        worst_slowdown=max(share.worst_slowdown for _, share in of_runs),
    )


def possible_share(
    observed: Observation,
    rules: SharingRules,
    find_gpu: GpuLookup,
    least_s: float = LEAST_SAMPLED_S,
    smallest: Mapping[str, int] = MappingProxyType({}),
) -> PossibleShare | None:
    """Return the share with the least GPU time that the site's *rules* would promise; ``None`` where there is none.

    One above half of a GPU must leave room for the site's *smallest* shares, as in `Cluster`.
    """
    usage, record = observed.usage, observed.decision
    # The decision knew the model, so its own share and price stand.
    if record is not None and was_share_withheld(observed):
        size = record.decision.request.mps_thread_percent or WHOLE_PERCENT
        expected = expected_slowdown(observed)
        return PossibleShare(share_percent=size, slowdown=expected.value, worst_slowdown=expected.high)
    prices = record.decision.if_shared if record is not None and had_whole_gpus(observed) else ()
    for price in (price for price in prices if price.gpu == usage.gpu):
        value, worst = (max(1.0, end) for end in (price.slowdown.value, price.slowdown.high))
        return PossibleShare(share_percent=price.share_percent, slowdown=value, worst_slowdown=worst)

    # Shares are of one GPU, never of a slice; and memory and the busiest minute must be known to price one.
    has_figures = has_own_figures(usage) or own_utilization(usage, least_s) is not None
    is_seen = usage.outcome in SOUND and has_figures
    has_one = gpu_count(observed) == 1 and (record is None or record.decision.request.gpu_count <= 1)
    gpu = find_gpu(usage.gpu) if had_whole_gpus(observed) and is_seen and has_one else None
    if gpu is None or gpu.parent_gpu is not None or not usage.memory_bytes or usage.peak_utilization is None:
        return None

    accepted = record.workload.slowdown if record and record.workload else None
    # Whole percents make equal keys for the cache below; rounding up keeps the price on the safe side.
    utilization_percent = ceil(100 * min(usage.peak_utilization, 1.0))
    shares = _promised_shares(gpu.name, find_gpu, utilization_percent, accepted, rules)

    # The same margin as on a job's memory from its history: the next run may take more.
    needed_bytes = MEMORY_MARGINS[0] * usage.memory_bytes
    # The site's names of types are not the catalogue's, where `v100` may have less memory than the site's board.
    named, chip = ((name, find_gpu(name) if name else gpu) for name in smallest), (gpu.generation, gpu.sm_count)
    partners = (smallest[name] for name, one in named if one and (one.generation, one.sm_count) == chip)
    partner = min(partners, default=WHOLE_PERCENT) if smallest else 0
    largest = max(WHOLE_PERCENT - partner, WHOLE_PERCENT // 2)
    enough = (
        share
        for share in shares
        if share.share_percent <= largest and needed_bytes <= memory_cap_bytes(gpu.memory_bytes, share.share_percent)
    )
    return min(enough, key=lambda share: share.share_percent * share.slowdown, default=None)


# A price takes a millisecond, and a month has many runs of few kinds.
@lru_cache(maxsize=4096)
def _promised_shares(
    gpu_name: str, find_gpu: GpuLookup, utilization_percent: int, accepted: float | None, rules: SharingRules
) -> Sequence[PossibleShare]:
    """Return the shares that the site would promise for a utilization, whatever the job's memory.

    Args:
        gpu_name: Name in the catalogue.
        find_gpu: Finds the row of *gpu_name*.
        utilization_percent: Utilization in the busiest minute on the whole GPU.
        accepted: Slowdown that the user accepts; ``None`` is the site's limit.
        rules: The site's rules.
    """
    # Memory is 0 here and checked by the caller, so that runs which differ only in memory have one price.
    gpu = find_gpu(gpu_name)
    known = ObservedFigures(
        gpu_utilization=Figure(interval=exact_interval(utilization_percent / 100), source=""),
        memory_bytes=Figure(interval=exact_interval(0), source=""),
    )
    need = gpu_need(known, gpu) if gpu else None
    if gpu is None or need is None:
        return ()

    # The policy's own offers on a free GPU, so that a report promises no share that a decision would not.
    pool = GpuPool(gpu=gpu.name, site_type=gpu.name, gpu_count=1, free_gpu_count=1)
    candidate = Candidate(pool=pool, gpu=gpu, need=need, shares=share_prices(need, priced_percents(rules)))
    within = limits(rules, accepted)
    return [
        PossibleShare(
            share_percent=offer.share_percent, slowdown=offer.slowdown.value, worst_slowdown=offer.slowdown.high
        )
        for offer in offers([candidate], GpuRequest(gpu_count=1), rules)
        if can_promise(offer, within)
    ]
