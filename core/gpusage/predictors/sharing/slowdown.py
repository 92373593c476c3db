"""What a share of a GPU costs a job: its step time on the share over that on the whole GPU, as one ratio.

Both step times miss alike by what is the model's own, so their ratio is known far better than either. On the share the
GPU's own time grows; what the host does (the loader, launches, Python) takes as long as before. So the cost depends on
how much of the step the GPU works, which the graph shows, or an earlier run alone on the whole GPU
(`gpusage.predictors.sharing.host`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal, get_args

import numpy as np

from gpusage.predictors.analysis import analyze
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.artifacts import SlowdownRule
from gpusage.predictors.sharing.host import SHARPNESS, HostUncertainty, gpu_bound_probability, gpu_time_shares
from gpusage.predictors.sharing.share_growth import growths, slowdown_rule
from gpusage.predictors.times.residual import KERNEL_COUNT
from gpusage.predictors.times.step_time import Timing
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Figure, Gpu, Interval, ModelGraph, ObservedFigures, Workload

BusyShareEvidence = Literal["graph", "step_time", "utilization"]
"""Where the part of the step that the GPU works comes from."""
_NO_SLOWDOWN = Interval(value=1.0, low=1.0, high=1.0)
_DIRECTIONS = np.array([[-1.0], [0.0], [1.0]])
"""Where the low end, the point and the high end lie on a logarithmic scale, as rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownDeviations:
    """How far 90 % of the truths lie from the point, each on a logarithmic scale.

    Attributes:
        growth: Of the growth of the GPU's time, as a part of its logarithm.
        noise: Of any measured ratio.
        working: Of the part of the step that the GPU works, downwards and upwards, by its source.
        host: How a known step time is weighed between the host and the GPU.
        filling_blocks: The rule of the point, as in `gpusage.predictors.sharing.share_growth.growths_with`.
    """

    growth: float
    noise: float
    working: Mapping[BusyShareEvidence, tuple[float, float]]
    host: HostUncertainty
    filling_blocks: float | None = None


@hookimpl(trylast=True)
def predict_slowdown(
    graph: ModelGraph,
    workload: Workload,
    gpus: Sequence[Gpu],
    parts: Sequence[Sequence[Gpu]],
    known: Sequence[ObservedFigures],
) -> Sequence[Sequence[Interval]]:
    """Predict the step time on each of a GPU's *parts* against that on the whole of it, for all *gpus* at once."""
    analysis = analyze(graph, workload)
    deviations = _deviations(slowdown_rule(analysis))
    gpu_of = np.repeat(np.arange(len(gpus)), [len(of_gpu) for of_gpu in parts])
    working = _working(analysis.timing(gpus), known, deviations)
    ends = slowdowns(working[:, gpu_of], growths(analysis, gpus, parts), deviations)
    rows = iter(ends.T.tolist())
    return [
        [
            _NO_SLOWDOWN if part is gpu else Interval(value=value, low=low, high=high)
            for part, (low, value, high) in zip(of_gpu, islice(rows, len(of_gpu)), strict=True)
        ]
        for gpu, of_gpu in zip(gpus, parts, strict=True)
    ]


def slowdowns(working: FloatArray, growth: FloatArray, deviations: SlowdownDeviations) -> FloatArray:
    """Return the low ends, the points and the high ends of slowdowns, each at least 1, as three rows.

    Args:
        working: As `share_interval` returns it; above 1 counts as 1.
        growth: The GPU's own time on the part over that on the whole GPU; below 1 counts as 1.
        deviations: How far the truths lie from the point.
    """
    powers, noises = 1.0 + _DIRECTIONS * deviations.growth, np.exp(_DIRECTIONS * deviations.noise)
    return np.maximum(_joined(working, np.maximum(growth, 1.0) ** powers) * noises, 1.0)


def points(working: FloatArray, growth: FloatArray) -> FloatArray:
    """Return the points alone of `slowdowns`."""
    return np.maximum(_joined(working, np.maximum(growth, 1.0)), 1.0)


def share_interval(working: FloatArray, evidence: BusyShareEvidence, deviations: SlowdownDeviations) -> FloatArray:
    """Return the low ends, the points and the high ends of the part of the step that the GPU works, as three rows.

    Args:
        working: The GPU's own time over the step's, alone on the whole GPU; or its low ends, points and high ends.
        evidence: Its source.
        deviations: How far the truths lie from the point.
    """
    less, more = deviations.working[evidence]
    return working * np.exp([[-less], [0.0], [more]])


def _working(timing: Timing, known: Sequence[ObservedFigures], deviations: SlowdownDeviations) -> FloatArray:
    """Return the part of the step in which each GPU works, alone on it, with its ends, from the best known figure."""
    working = share_interval(timing.busy_s / timing.step_s, "graph", deviations)
    for index, of_gpu in enumerate(known):
        if of_gpu.gpu_utilization:
            working[:, [index]] = share_interval(_ends(of_gpu.gpu_utilization), "utilization", deviations)
        elif of_gpu.step_time_s:
            shares = _shares_from_step_time(of_gpu.step_time_s, timing, index, deviations.host)
            working[:, [index]] = share_interval(shares, "step_time", deviations)
    return working


def busy_shares(
    graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], known: Sequence[ObservedFigures]
) -> list[Interval | None]:
    """Return for each of *gpus* what a known step time shows about the GPU's part of the step; None without one."""
    if not any(of_gpu.step_time_s for of_gpu in known):
        return [None] * len(gpus)
    analysis = analyze(graph, workload)
    timing, deviations = analysis.timing(gpus), _deviations(slowdown_rule(analysis))
    return [
        _busy_share(of_gpu.step_time_s, timing, index, deviations) if of_gpu.step_time_s else None
        for index, of_gpu in enumerate(known)
    ]


def gpu_bound_odds(graph: ModelGraph, workload: Workload, gpu: Gpu, step_time_s: float) -> float:
    """Return how likely *gpu* takes all of a known step, 0 to 1, against a step that is as long as predicted.

    The rest is the odds of a host, or of data, that the GPU waits for.
    """
    analysis = analyze(graph, workload)
    timing, doubt = analysis.timing([gpu]), _deviations(slowdown_rule(analysis)).host
    count, predicted_s = np.exp(timing.features[[0, 0], KERNEL_COUNT]), float(timing.step_s[0])
    steps_s = np.array([max(step_time_s, predicted_s), predicted_s])
    known, predicted = gpu_bound_probability(timing.busy_s[[0, 0]], steps_s, count, doubt).tolist()
    return float(min(known / max(predicted, 1e-30), 1.0))


def _busy_share(step_time_s: Figure, timing: Timing, index: int, deviations: SlowdownDeviations) -> Interval:
    shares = share_interval(
        _shares_from_step_time(step_time_s, timing, index, deviations.host), "step_time", deviations
    )
    low, value, high = np.minimum(shares[:, 0], 1.0).tolist()
    return Interval(value=value, low=low, high=high)


def _shares_from_step_time(step_time_s: Figure, timing: Timing, index: int, host: HostUncertainty) -> FloatArray:
    """Return low end, point and high end of what *step_time_s* shows about the GPU's part of the step."""
    count = np.exp(timing.features[[index], KERNEL_COUNT])
    low, value, high = gpu_time_shares(timing.busy_s[[index]], _ends(step_time_s)[:, 0], count, host).tolist()
    return np.array([[min(low, value, high)], [value], [max(low, value, high)]])


def _ends(figure: Figure) -> FloatArray:
    """Return low end, point and high end of *figure*, one below the other."""
    return np.array([[figure.interval.low], [figure.interval.value], [figure.interval.high]])


def _joined(working: FloatArray, growth: FloatArray) -> FloatArray:
    """Return the step's time against before, the GPU's own time being *growth* times as long."""
    before = np.minimum(working, 1.0)
    joined: FloatArray = ((before * growth) ** SHARPNESS + 1.0 - before**SHARPNESS) ** (1.0 / SHARPNESS)
    return joined


@lru_cache(maxsize=4)
def _deviations(rule: SlowdownRule) -> SlowdownDeviations:
    """Return the deviations of a *rule* of an artifact."""
    working = {evidence: rule.working[evidence] for evidence in get_args(BusyShareEvidence)}
    ends = {evidence: (float(down), float(up)) for evidence, (down, up) in working.items()}
    host = HostUncertainty(launch_s=rule.host["launch_s"], host=rule.host["host"], own=rule.host["own"])
    return SlowdownDeviations(
        growth=rule.growth, noise=rule.noise, working=ends, host=host, filling_blocks=rule.filling_blocks
    )
