"""What an hour of a GPU counts: by the site's prices, or else by the weights that its workload managers bill by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpusage_hooks.types import Cluster

Currency = Literal["money", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Figures of an hour of one whole GPU, by the catalogue's names; those of one currency alone."""

    per_hour: Mapping[str, float] = field(default_factory=dict)
    currency: Currency = "money"


def rates_of(prices: Mapping[str, float], clusters: Iterable[Cluster]) -> Rates:
    """Return *prices* where there are any, else the dearest weight of each GPU type in *clusters*."""
    if prices:
        return Rates(per_hour=prices)
    weights: dict[str, float] = {}
    for pool in (pool for cluster in clusters for pool in cluster.pools):
        if pool.gpu is not None and pool.billing_weight is not None:
            weights[pool.gpu] = max(pool.billing_weight, weights.get(pool.gpu, 0.0))
    return Rates(per_hour=weights, currency="weights")
