"""What really happens: predictions times errors, and the pairs of jobs that a site measured.

Errors are as large as the intervals say, drawn once for each kind, and hold for all of its jobs. A share costs what its
price says, times an error; for partners on it, the average cost is added. Jobs without a model run alike on all types
and beside whatever partners: on a part of a GPU that they ask for, their time is that which they took on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import geometric_mean

import numpy as np
import numpy.typing as npt

from gpusage.cli import options
from gpusage.cli.pairs import Pair
from gpusage.predictors import intervals
from gpusage.predictors.intervals import NINETY_PERCENT
from gpusage.predictors.sharing.colocation import slowdown_with_partners
from gpusage_hooks.types import Interval, ModelRequest, Price, Workload
from gpusage_planning.simulator.contract import Colocation, FloatArray, Kind, Tenant
from gpusage_planning.simulator.fleet import Fleet, GpuType
from gpusage_planning.simulator.predictions import Foresight, Models, colocated_throughputs
from gpusage_planning.zoo import load_zoo


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """What was measured of the kinds of a simulation.

    Attributes:
        pair_throughputs: For each GPU type, the throughput of each row with each column, relative to alone; NaN where
            it was not measured.
        pair_count: Pairs of the file.
        used_count: Those of them that kinds of the simulation are of.
    """

    pair_throughputs: Sequence[FloatArray]
    pair_count: int
    used_count: int


def measured_of(pairs: Sequence[Pair], kinds: Sequence[Kind], models: Models, fleet: Fleet) -> Measured:
    """Return what *pairs* show of *kinds* on the GPUs of *fleet*: of several values of one pair, the geometric mean."""
    requests = {number: _request_of(kinds[number], run) for number, run in models.workloads.items()}
    values: dict[tuple[int, int, int], list[float]] = {}
    used: set[int] = set()
    for number, pair in enumerate(pairs):
        for key in _places(pair, requests, fleet.types):
            values.setdefault(key, []).append(pair.slowdown)
            used.add(number)

    pair_throughputs = tuple(np.full((len(kinds), len(kinds)), np.nan) for _ in fleet.types)
    for (place, job, other), slowdowns in values.items():
        pair_throughputs[place][job, other] = min(1.0, 1.0 / geometric_mean(slowdowns))
    return Measured(pair_throughputs=pair_throughputs, pair_count=len(pairs), used_count=len(used))


def _places(
    pair: Pair, requests: Mapping[int, ModelRequest], types: Sequence[GpuType]
) -> Iterator[tuple[int, int, int]]:
    jobs = [kind for kind, request in requests.items() if _is_same(pair.job, request)]
    others = [kind for kind, request in requests.items() if _is_same(pair.partner, request)]
    for place, one in enumerate(types):
        names = {one.name.casefold(), one.gpu.name.casefold() if one.gpu else ""}
        if not pair.gpu or pair.gpu.casefold() in names:
            yield from ((place, job, other) for job in jobs for other in others)


def _request_of(kind: Kind, workload: Workload) -> ModelRequest:
    """Return the model of *kind* without its options, and how it is run."""
    text = kind.model or ""
    name = text if text in load_zoo() else options.read_request(text, {}).model
    return ModelRequest(model=name, workload=workload)


def _is_same(one: ModelRequest, other: ModelRequest) -> bool:
    """Return whether both are one job; a shape that only one of them has is taken for the other's."""
    of, over = one.workload, other.workload
    return (
        (one.model, of.batch_size, of.mode, of.precision) == (other.model, over.batch_size, over.mode, over.precision)
    ) and (of.shape == over.shape or not (of.shape and over.shape))


BoolArray = npt.NDArray[np.bool_]
BUSY = 0.5
"""NVML's busy share of a job of which nothing is known."""
LEAST = 0.02
"""Of a job's throughput, as the predictor has it."""
PAIR_DEVIATION = 0.15
"""Of the logarithm of a pair's throughput over its prediction, model unseen (lab/docs/accuracy.md)."""
WHOLE = 100


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictedTruth:
    """What happens to jobs whose kinds were never measured.

    Attributes:
        fleet: Its first type on which a kind fits has speed 1 for it, or the type that the kind insists on.
        errors: A row per kind with normal deviates: of speed, memory, utilization and the price of shares.
        pair_throughputs: For each GPU type, what a pair's throughputs are.
        measured: For each GPU type, the pairs of which they were measured; empty where none were.
    """

    fleet: Fleet
    kinds: tuple[Kind, ...]
    models: Models
    errors: FloatArray
    pair_throughputs: Sequence[FloatArray]
    measured: Sequence[BoolArray] = ()

    def speed(self, kind: int, gpu_type: int) -> float:
        """Return the speed-up against the kind's first type, which has speed 1."""
        first = self.first_type(kind)
        of, over = self.models.needs.get((kind, gpu_type)), self.models.needs.get((kind, first))
        if of is None or over is None or gpu_type == first:
            return 1.0
        return draw_value(intervals.speedup(of, over), self.errors[kind, 0])

    def memory_bytes(self, kind: int, gpu_type: int) -> float:
        """Return the memory; never more than its own type has, or else the largest, for the jobs of a trace did run."""
        # Jobs of a trace did run, so no error makes them larger than the GPUs that they ran on.
        need, own = self.models.needs.get((kind, gpu_type)), self.kinds[kind].gpu_type
        most = max(one.memory_bytes for one in self.fleet.types if own in (None, one.name))
        return 0.0 if need is None else min(draw_value(need.memory_bytes, self.errors[kind, 1]), most)

    def colocation_of(self, tenants: Sequence[Tenant], gpu_type: int) -> Colocation:
        """Return speeds by the prices of shares where threads are limited, else by the pairs.

        Beside partners that were measured, a job on a share is as slow as its share or its partners make it.
        """
        kinds = [tenant.kind for tenant in tenants]
        pairs = colocated_throughputs(self.pair_throughputs[gpu_type], kinds)
        speeds = tuple(
            speed if tenant.thread_percent >= WHOLE else self._on_share(tenant, place, kinds, gpu_type, speed)
            for place, (tenant, speed) in enumerate(zip(tenants, pairs, strict=True))
        )
        idle = np.prod([1 - self.utilization(kind, gpu_type) for kind in kinds])

        return Colocation(speeds, float(1 - idle))

    def first_type(self, kind: int) -> int:
        """Return the GPU type of which the times of the kind's jobs are."""
        named = self.kinds[kind].gpu_type
        for place, one in enumerate(self.fleet.types):
            need = self.models.needs.get((kind, place))
            if one.name == named or (named is None and (need is None or need.fits)):
                return place
        return 0

    def _on_share(self, tenant: Tenant, place: int, kinds: Sequence[int], gpu_type: int, paired: float) -> float:
        """Return the speed of *tenant*, the one at *place* of *kinds*, whose speed by the pairs is *paired*."""
        partners = [*kinds[:place], *kinds[place + 1 :]]
        if partners and self.measured and self.measured[gpu_type][tenant.kind, partners].all():
            return min(paired, 1 / self._slowdown(tenant, gpu_type, 0))
        return 1 / self._slowdown(tenant, gpu_type, len(partners))

    def _slowdown(self, tenant: Tenant, gpu_type: int, partners: int) -> float:
        prices = self.models.prices.get((tenant.kind, gpu_type), ())
        price = share_slowdown(prices, tenant.thread_percent, is_alone=not partners)
        alone = max(draw_value(price, self.errors[tenant.kind, 3]), 1.0)
        powers = prices[0].partner_powers if prices else None
        return slowdown_with_partners(Interval(value=alone, low=alone, high=alone), partners, powers).value

    def utilization(self, kind: int, gpu_type: int) -> float:
        """Return NVML's busy share of the kind alone."""
        need = self.models.needs.get((kind, gpu_type))
        return BUSY if need is None else min(draw_value(need.gpu_utilization, self.errors[kind, 2]), 1.0)


def predicted_truth(
    fleet: Fleet,
    kinds: tuple[Kind, ...],
    models: Models,
    foresight: Foresight,
    seed: int,
    measured: Sequence[FloatArray] = (),
) -> PredictedTruth:
    """Return a truth whose errors *seed* draws; *measured* has throughputs of pairs for each GPU type, NaN for none."""
    generator = np.random.default_rng(seed)
    # Drawn first and for all kinds, so that a seed gives the same errors whatever pairs were measured.
    errors = generator.standard_normal((len(kinds), 4))
    pairs = tuple(
        np.clip(matrix * np.exp(PAIR_DEVIATION * generator.standard_normal(matrix.shape)), LEAST, 1.0)
        for matrix in foresight.pair_throughputs
    )
    pairs = tuple(np.where(_is_predicted(models, place, len(kinds)), each, 1.0) for place, each in enumerate(pairs))
    known = tuple(~np.isnan(matrix) for matrix in measured)
    if measured:
        pairs = tuple(np.where(one, own, other) for one, own, other in zip(known, measured, pairs, strict=True))

    return PredictedTruth(
        fleet=fleet, kinds=kinds, models=models, errors=errors, pair_throughputs=pairs, measured=known
    )


def _is_predicted(models: Models, place: int, count: int) -> BoolArray:
    """Return of which pairs of *count* kinds both are predicted on one GPU type."""
    is_predicted = np.array([(kind, place) in models.needs for kind in range(count)])
    both: BoolArray = np.logical_and.outer(is_predicted, is_predicted)
    return both


def draw_value(figure: Interval, deviate: float) -> float:
    """Return the figure times an error of *deviate* deviations, which follow from the interval's ends."""
    if not 0 < figure.low <= figure.value <= figure.high:
        return figure.value
    end = figure.high if deviate > 0 else figure.low
    return figure.value * exp(abs(deviate) * log(end / figure.value) / NINETY_PERCENT)


def share_slowdown(prices: Sequence[Price], percent: int, *, is_alone: bool) -> Interval:
    """Return what a share of *percent* costs, by the next smaller one with a price, else in proportion."""
    known = [price for price in prices if price.share_percent <= percent]
    if known:
        nearest = max(known, key=lambda price: price.share_percent)
        return nearest.slowdown if is_alone else nearest.slowdown_under_contention
    slowdown = WHOLE / max(percent, 1)
    return Interval(value=slowdown, low=slowdown, high=slowdown)
