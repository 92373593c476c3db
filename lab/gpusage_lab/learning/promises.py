"""How often the promise of a share would be kept on measured prices, by the rule that gives the shares.

Each rule sees what a user could know; the measurement says whether the step stayed within the limit. The prices are
of jobs alone on their share: RaPP's percentages of a V100, ParvaGPU's slices of an A100, inference both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from gpusage.decisions.advisor import Advisor
from gpusage.policies.share_price import Limits, Offer, can_promise, limits
from gpusage.predictors.sharing.slowdown import predict_slowdown
from gpusage_hooks.types import Candidate, Gpu, GpuNeed, GpuPool, GpuRequest, Price, SharingRules, SoloRun, Workload
from gpusage_lab.learning.slowdown_rows import PARVAGPU, RAPP, WHOLE_FROM_PERCENT, SlowdownRow, slowdown_rows
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.zoo import Zoo

ONE_GPU = GpuRequest(gpu_count=1)
WHOLE = 100
RAPP_SIZES = (25, 35, 50, 75)
"""Percentages that RaPP measured; 35 stands for a third."""

Rule = Callable[["Measured"], int]
"""Returns which share a job gets, `WHOLE` for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One model and batch size: what is predicted, and the measured slowdown on each part that was measured.

    Attributes:
        known: What each part costs, by its percentage, with the step time on the whole GPU known.
        unknown: The same with nothing known.
    """

    known: Mapping[int, Offer]
    unknown: Mapping[int, Offer]
    slowdowns: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseScore:
    """What came of one rule, in percent of all jobs, save *of_shares_percent*, which is of the jobs with a share.

    Attributes:
        gpu_time_percent: Of a step, measured: the part of the GPU times how many times as long it takes there.
    """

    rule: str
    shares_percent: float
    mean_share_percent: float
    gpu_time_percent: float
    met_percent: float
    of_shares_percent: float


def promise_scores(jobs: Sequence[Measured], rules: Mapping[str, Rule], limit: float) -> Iterator[PromiseScore]:
    """Yield what comes of each rule where a step may take *limit* times as long as on the whole GPU."""
    for name, rule in rules.items():
        chosen = [rule(job) for job in jobs]
        within = [job.slowdowns[size] <= limit for job, size in zip(jobs, chosen, strict=True) if size < WHOLE]
        broken = len(within) - sum(within)
        yield PromiseScore(
            rule=name,
            shares_percent=100 * len(within) / len(jobs),
            mean_share_percent=sum(chosen) / len(jobs),
            gpu_time_percent=sum(size * job.slowdowns.get(size, 1.0) for job, size in zip(jobs, chosen, strict=True))
            / len(jobs),
            met_percent=100 - 100 * broken / len(jobs),
            of_shares_percent=100 - 100 * broken / max(len(within), 1),
        )


def rules_at(limit: float, constants: Sequence[int], sizes: Sequence[int]) -> dict[str, Rule]:
    """Return every rule by name: the price, the same size for all, and one that knows the measurement."""
    within = limits(SharingRules(), limit)
    same = {f"always {size} %": _fixed_share(size) for size in constants}
    return {
        "price, step time known": lambda job: _by_price(job.known, within),
        "price, nothing known": lambda job: _by_price(job.unknown, within),
        **same,
        "oracle": lambda job: min(
            (size for size in sizes if job.slowdowns.get(size, limit + 1) <= limit), default=WHOLE
        ),
    }


def _fixed_share(size: int) -> Rule:
    return lambda job: size if size in job.slowdowns else WHOLE


def _by_price(offers: Mapping[int, Offer], within: Limits) -> int:
    promised = (percent for percent, offer in offers.items() if can_promise(offer, within))
    return min(promised, key=lambda percent: percent * offers[percent].price.slowdown.value, default=WHOLE)


def cheapest(candidate: Candidate, within: Limits) -> Offer | None:
    """Return the share that the price's rule takes at *candidate*."""
    offers = shares_of(candidate)
    percent = _by_price(offers, within)
    return offers.get(percent)


def shares_of(candidate: Candidate) -> dict[int, Offer]:
    """Return the shares at *candidate* by percentage."""
    return {price.share_percent: Offer(candidate=candidate, request=ONE_GPU, price=price) for price in candidate.shares}


def candidate_of(gpu: Gpu, need: GpuNeed, prices: tuple[Price, ...]) -> Candidate:
    """Return a free GPU with what a job needs there and what its shares cost."""
    pool = GpuPool(gpu=gpu.name, site_type=gpu.name, gpu_count=1, free_gpu_count=1, mps_per_gpu=WHOLE)
    return Candidate(pool=pool, gpu=gpu, need=need, shares=prices)


def rapp(advisor: Advisor, data: DataFolder, zoo: Zoo) -> Iterator[Measured]:
    """Yield RaPP's jobs whose model the zoo has."""
    table, gpu = data.read(RAPP), advisor.catalogue.find("v100")
    table = table[table["time_quota_percent"] == WHOLE]
    for (model, batch), group in table.groupby(["model", "batch_size"]):
        key = f"torchvision:{model}@224"
        if key not in zoo:
            continue
        latency_ms = group.set_index("mps_percent")["latency_ms"]
        whole_ms = float(latency_ms[latency_ms.index >= WHOLE_FROM_PERCENT].median())
        run, graph = Workload(mode="infer", batch_size=int(batch)), zoo.graph(key)
        need = advisor.predict(graph, run, [gpu])[0]
        known = replace(run, alone=SoloRun(step_time_s=whole_ms / 1e3))
        offers, unknown = (
            shares_of(candidate_of(gpu, need, advisor.price(graph, each, [gpu], RAPP_SIZES)[0]))
            for each in (known, run)
        )
        slowdowns = {int(percent): max(float(ms) / whole_ms, 1.0) for percent, ms in latency_ms.items()}
        yield Measured(known=offers, unknown=unknown, slowdowns=slowdowns)


def parvagpu(advisor: Advisor, data: DataFolder, zoo: Zoo) -> Iterator[Measured]:
    """Yield ParvaGPU's jobs whose model the zoo has; a slice counts as the percentage of SMs that it is."""
    rows = [row for row in slowdown_rows(data, zoo) if row.source == PARVAGPU]
    for _, group in groupby(rows, key=lambda row: (row.key, row.workload)):
        slices = list(group)
        run, alone = slices[0].workload, SoloRun(step_time_s=slices[0].alone_s)
        need = advisor.predict(zoo.graph(slices[0].key), run, [slices[0].gpu])[0]
        known, unknown = (_slices_of(advisor, zoo, slices, need, each) for each in (replace(run, alone=alone), run))
        slowdowns = {_percent(row): row.slowdown for row in slices}
        yield Measured(known=known, unknown=unknown, slowdowns=slowdowns)


def _slices_of(
    advisor: Advisor, zoo: Zoo, slices: Sequence[SlowdownRow], need: GpuNeed, run: Workload
) -> dict[int, Offer]:
    """Return the measured slices by their percentage of the SMs; each is a GPU of its own, without partners."""
    gpu, graph = slices[0].gpu, zoo.graph(slices[0].key)
    parts = [[row.share for row in slices]]
    (costs,) = predict_slowdown(graph, run, [gpu], parts, advisor.observed_figures(graph, run, [gpu]))
    prices = (Price(gpu=gpu.name, share_percent=WHOLE, slowdown=cost) for cost in costs)
    return {
        _percent(row): Offer(candidate=candidate_of(row.share, need, (price,)), request=ONE_GPU, price=price)
        for row, price in zip(slices, prices, strict=True)
    }


def _percent(row: SlowdownRow) -> int:
    return round(100 * row.part)
