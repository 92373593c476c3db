"""Predicted against observed, by model family and GPU; step times are not observed on a node, so they are not here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Literal

from gpusage.learning.runs import Run, runs_of
from gpusage.store.usage_rows import Observation
from gpusage_hooks.types import GpuNeed, Interval
from gpusage_hooks.units import WHOLE_PERCENT

Figure = Literal["memory", "utilization"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trueness:
    """How true predictions of one figure were.

    Attributes:
        ratio: The middle of observed over predicted.
        ratio_low: A quarter of the runs is below this.
        ratio_high: A quarter of the runs is above this.
        inside_count: How many runs were inside the interval.
        interval_count: How many had one that was of what they ran as.
    """

    family: str
    gpu: str
    figure: Figure
    run_count: int
    ratio: float
    ratio_low: float
    ratio_high: float
    inside_count: int
    interval_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    ratio: float
    inside: bool | None


_Key = tuple[str, str, Figure]


def trueness(observations: Iterable[Observation], least_s: float) -> tuple[Trueness, ...]:
    """Return how true predictions were, by family, GPU and figure; utilization of runs alone on a whole GPU."""
    pairs: dict[_Key, list[_Pair]] = defaultdict(list)
    for each, run in runs_of(observations, least_s):
        for key, pair in _pairs(each, run):
            pairs[key].append(pair)
    return tuple(_trueness(key, pairs[key]) for key in sorted(pairs))


def _pairs(observed: Observation, run: Run) -> Iterator[tuple[_Key, _Pair]]:
    need = observed.decision.decision.need if observed.decision else None
    if need is None or need.gpu != run.gpu:
        return
    family = run.identity.family
    if run.memory_bytes and not run.lacked_memory and need.memory_bytes.value > 0:
        yield (family, run.gpu, "memory"), _pair(run.memory_bytes, need.memory_bytes.value, need.memory_bytes)
    if run.utilization and run.predicted_utilization and run.share_percent == WHOLE_PERCENT:
        yield (family, run.gpu, "utilization"), _utilization(run, run.utilization, run.predicted_utilization, need)


def _utilization(run: Run, observed: float, predicted: float, need: GpuNeed) -> _Pair:
    """Return the pair; an interval of a share is not one of a run on the whole GPU."""
    whole = need.share_percent == run.share_percent
    return _pair(observed, predicted, need.gpu_utilization if whole else None)


def _pair(observed: float, predicted: float, interval: Interval | None) -> _Pair:
    inside = None if interval is None else interval.low <= observed <= interval.high
    return _Pair(ratio=observed / predicted, inside=inside)


def _trueness(key: _Key, pairs: Sequence[_Pair]) -> Trueness:
    family, gpu, figure = key
    ratios = [pair.ratio for pair in pairs]
    low, middle, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    told = [pair.inside for pair in pairs if pair.inside is not None]
    return Trueness(
        family=family,
        gpu=gpu,
        figure=figure,
        run_count=len(pairs),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
        inside_count=sum(told),
        interval_count=len(told),
    )
