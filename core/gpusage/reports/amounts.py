"""GPU hours of runs, and the price of an hour; sums alone, never a mean over jobs.

Invariants:

1. Time without a sample is *unseen*, never idle.
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
from gpusage_hooks.types import Cluster, Code, Interval
from gpusage_hooks.units import HOUR_S, WHOLE_PERCENT


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """GPU hours of runs; times a price per hour, the site's money.

    Attributes:
        requested: Hours under the users' own requests.
        booked: Hours of the allocations; a share counts as its part of a GPU.
        used: Booked hours with a kernel running.
        idle: Booked hours without a kernel.
        unseen: Booked hours that nobody sampled.
        held: Hours in which GPUs were kept from other jobs: each of k jobs on one GPU at a time keeps a k-th.
    """

    requested: float = 0.0
    booked: float = 0.0
    used: float = 0.0
    idle: float = 0.0
    unseen: float = 0.0
    held: float = 0.0

    @property
    def freed(self) -> float:
        """Return the hours of whole GPUs that shares left to other jobs; below 0 where shares cost more."""
        return self.requested - self.held

    def times(self, factor: float) -> Amounts:
        """Return all amounts multiplied by *factor*."""
        return Amounts(**{name: factor * value for name, value in asdict(self).items()})


def total(amounts: Iterable[Amounts]) -> Amounts:
    """Return the sum of *amounts*."""
    # Without any amounts there are no columns, so each field keeps its default 0.
    columns = zip(*map(astuple, amounts), strict=True)
    return Amounts(**dict(zip(Amounts.__struct_fields__, map(sum, columns), strict=False)))


def amounts_of(observed: Observation, least_s: float = LEAST_SAMPLED_S) -> Amounts:
    """Return the amounts of a run; less than *least_s* of samples count as unseen."""
    usage, hours = observed.usage, gpu_hours(observed)
    booked = hours * usage.granted.share_percent / WHOLE_PERCENT

    # On a whole GPU the same run is shorter by the predicted slowdown. A run that lacked memory on its share
    # would not have taken place at all: all its hours are lost.
    requested = held = booked
    if had_share(observed):
        is_lost = usage.outcome == "out_of_memory"
        requested = 0.0 if is_lost else hours / expected_slowdown(observed).value

        # k jobs on a GPU at a time free k - 1 GPUs. Beside a share that nobody sampled, nobody was seen; where nobody
        # counted the others, it was one.
        held_s = (usage.sampled_s + usage.alone_s) / 2 if usage.held_s is None else usage.held_s
        held = hours * (min(held_s / usage.sampled_s, 1.0) if usage.sampled_s >= least_s else 1.0)

    # Unknown where other jobs were on the GPU: its counters do not separate jobs.
    utilization = own_utilization(usage, least_s)
    return Amounts(
        requested=requested,
        booked=booked,
        used=booked * (utilization or 0.0),
        idle=0.0 if utilization is None else booked * (1.0 - utilization),
        unseen=booked if utilization is None else 0.0,
        held=held,
    )


def had_share(observed: Observation) -> bool:
    """Return whether the run had a share in place of the requested whole GPU."""
    record = observed.decision
    carried_out = record is not None and record.decision.code is Code.REWRITE and record.mode == "enforce"
    return carried_out and observed.usage.granted.share_percent < WHOLE_PERCENT


def had_whole_gpus(observed: Observation) -> bool:
    """Return whether the run had whole GPUs, neither a share nor a slice."""
    granted = observed.usage.granted
    return granted.division == "whole" and granted.share_percent == WHOLE_PERCENT


def was_share_withheld(observed: Observation) -> bool:
    """Return whether the site's mode withheld a decided share."""
    record = observed.decision
    decided = record is not None and record.decision.code is Code.REWRITE and record.mode != "enforce"
    return decided and record is not None and record.decision.request.mps_thread_percent is not None


def gpu_count(observed: Observation) -> float:
    """Return the number of GPUs that the run had a part of, on one node or, from the accounting, on all nodes."""
    usage, record = observed.usage, observed.decision
    if usage.gpu_count is not None:
        return usage.gpu_count

    # Nobody counted: the decision knows the request of a whole-GPU job, and each other job surely had one GPU.
    is_whole = usage.granted.share_percent == WHOLE_PERCENT
    return max(1.0, record.decision.request.gpu_count) if record is not None and is_whole else 1.0


def gpu_hours(observed: Observation) -> float:
    """Return the hours of the run, each GPU that it had a part of counted whole."""
    # Clocks of several hosts differ, so an end may lie before its start.
    return gpu_count(observed) * max(0.0, observed.usage.ended_at_s - observed.usage.started_at_s) / HOUR_S


def expected_slowdown(observed: Observation) -> Interval:
    """Return the price of the share beside average partners, at least 1 with its ends: what the decision showed."""
    decision = observed.decision.decision if observed.decision else None
    # A site's own policy may give a share and know no price beside partners.
    price = decision and (decision.slowdown_with_partners or (decision.need and decision.need.slowdown))
    return Interval(**{end: max(1.0, getattr(price, end, 1.0)) for end in ("value", "low", "high")})


Currency = Literal["money", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Prices of an hour of a whole GPU, by the catalogue's names, all in the same currency."""

    per_hour: Mapping[str, float] = field(default_factory=dict)
    currency: Currency = "money"


def rates_of(prices: Mapping[str, float], clusters: Iterable[Cluster]) -> Rates:
    """Return *prices* where there are any, else the highest weight of each GPU type in *clusters*."""
    if prices:
        return Rates(per_hour=prices)

    # A GPU type may stand in several partitions with different weights; jobs pay the most expensive at worst.
    weights: dict[str, float] = {}
    for pool in (pool for cluster in clusters for pool in cluster.pools):
        if pool.gpu is not None and pool.billing_weight is not None:
            weights[pool.gpu] = max(pool.billing_weight, weights.get(pool.gpu, 0.0))
    return Rates(per_hour=weights, currency="weights")
