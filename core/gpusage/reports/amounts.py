"""What runs took of GPUs, in GPU hours, and what an hour costs; sums alone, never a mean over jobs.

Invariants:

1. What was not seen is *unseen*, never idle.
2. *booked* is the sum of *used*, *idle* and *unseen*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec.structs import asdict, astuple

from gpusage.experience.finished_jobs import LEAST_SAMPLED_S, own_utilization
from gpusage.store.rows import Observation
from gpusage_hooks.types import Cluster, Code
from gpusage_hooks.units import HOUR_S, WHOLE_PERCENT


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """What runs took, in GPU hours; times a price per hour, in the site's money.

    Attributes:
        requested: What the runs would have taken as their users asked for them.
        booked: What they had: a share counts as its part of a GPU.
        used: Of this, while a kernel ran.
        idle: Of this, while none ran.
        unseen: Of this, the unknown part.
        savable: What shares would have saved that were decided and, in the site's mode, not given.
    """

    requested: float = 0.0
    booked: float = 0.0
    used: float = 0.0
    idle: float = 0.0
    unseen: float = 0.0
    savable: float = 0.0

    @property
    def saved(self) -> float:
        """Return what shares left to others; below 0 where they cost more than they saved."""
        return self.requested - self.booked

    def times(self, factor: float) -> Amounts:
        """Return each amount, *factor* times as large."""
        return Amounts(**{name: factor * value for name, value in asdict(self).items()})


def total(amounts: Iterable[Amounts]) -> Amounts:
    """Return the sum of *amounts*."""
    columns = zip(*map(astuple, amounts), strict=True)
    return Amounts(**dict(zip(Amounts.__struct_fields__, map(sum, columns), strict=False)))


def amounts_of(observed: Observation, least_s: float = LEAST_SAMPLED_S) -> Amounts:
    """Return what one run took; nothing was seen of one that was sampled for less than *least_s*."""
    usage = observed.usage
    hours = gpu_count(observed) * max(0.0, usage.ended_at_s - usage.started_at_s) / HOUR_S
    booked = hours * usage.granted.share_percent / WHOLE_PERCENT
    utilization = own_utilization(usage, least_s)
    return Amounts(
        requested=_requested_hours(booked, observed),
        booked=booked,
        used=booked * (utilization or 0.0),
        idle=0.0 if utilization is None else booked * (1.0 - utilization),
        unseen=booked if utilization is None else 0.0,
        savable=_savable(hours, observed),
    )


def had_share(observed: Observation) -> bool:
    """Return whether a whole GPU was asked for, and the run had a share of it in its place."""
    record = observed.decision
    carried_out = record is not None and record.decision.code is Code.REWRITE and record.mode == "enforce"
    return carried_out and observed.usage.granted.share_percent < WHOLE_PERCENT


def had_whole_gpus(observed: Observation) -> bool:
    """Return whether the run had GPUs to itself, neither a share nor a slice."""
    granted = observed.usage.granted
    return granted.division == "whole" and granted.share_percent == WHOLE_PERCENT


def was_share_withheld(observed: Observation) -> bool:
    """Return whether a share was decided, and not given because of the site's mode."""
    record = observed.decision
    decided = record is not None and record.decision.code is Code.REWRITE and record.mode != "enforce"
    return decided and record is not None and record.decision.request.mps_thread_percent is not None


def gpu_count(observed: Observation) -> float:
    """Return how many GPUs the run had a part of: those of one node, or of all nodes as the accounting has them.

    Where nobody counted, as older samplers did not, the decision's are taken, else the one that is sure.
    """
    usage, record = observed.usage, observed.decision
    if usage.gpu_count is not None:
        return usage.gpu_count
    is_whole = usage.granted.share_percent == WHOLE_PERCENT
    return max(1.0, record.decision.request.gpu_count) if record is not None and is_whole else 1.0


def _requested_hours(booked: float, observed: Observation) -> float:
    """Return what the request as asked would have taken: on the whole GPU the run is shorter, as was predicted.

    A run that ran out of its share's memory would not have taken place: all of it is lost.
    """
    if not had_share(observed):
        return booked
    if observed.usage.outcome == "out_of_memory":
        return 0.0
    return booked * WHOLE_PERCENT / observed.usage.granted.share_percent / expected_slowdown(observed)


def _savable(hours: float, observed: Observation) -> float:
    if observed.decision is None or not was_share_withheld(observed):
        return 0.0
    share = (observed.decision.decision.request.mps_thread_percent or WHOLE_PERCENT) / WHOLE_PERCENT
    return hours * (1.0 - share * expected_slowdown(observed))


def expected_slowdown(observed: Observation) -> float:
    """Return the slowdown that was expected of the share, at least 1."""
    need = observed.decision.decision.need if observed.decision else None
    return max(1.0, need.slowdown.value) if need else 1.0


Currency = Literal["money", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Figures of an hour of one whole GPU, by the catalogue's names; those of one currency alone."""

    per_hour: Mapping[str, float] = field(default_factory=dict)
    currency: Currency = "money"


def rates_of(prices: Mapping[str, float], clusters: Iterable[Cluster]) -> Rates:
    """Return *prices* where there are any, else the highest weight of each GPU type in *clusters*."""
    if prices:
        return Rates(per_hour=prices)
    weights: dict[str, float] = {}
    for pool in (pool for cluster in clusters for pool in cluster.pools):
        if pool.gpu is not None and pool.billing_weight is not None:
            weights[pool.gpu] = max(pool.billing_weight, weights.get(pool.gpu, 0.0))
    return Rates(per_hour=weights, currency="weights")
