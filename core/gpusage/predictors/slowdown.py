"""What a share of a GPU costs a job: its step time there against that on the whole GPU, as one ratio.

Both step times miss alike by what is the model's own, so their ratio is known far better than either. On the share the
GPU's own time grows; what the host does (the loader, launches, Python) takes as long as before. So the cost depends on
how much of the step the GPU works: the model's graph tells it, or an earlier run alone on the whole GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from gpusage.predictors.lowering import FloatArray
from gpusage.predictors.pretrained import load
from gpusage.predictors.timing import Timing, timing_of
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Alone, Gpu, Interval, ModelGraph, Workload

ToldFrom = Literal["graph", "step_time", "utilization"]
"""What tells how much of the step the GPU works."""
SHARPNESS = 8.0
"""A step takes this norm of the GPU's time and the host's: hardly more than the larger one."""
_NONE = Interval(value=1.0, low=1.0, high=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviations:
    """How far 90 % of the truths lie from the point, each on a logarithmic scale.

    Attributes:
        growth: Of the growth of the GPU's time, as a part of its logarithm.
        noise: Of any measured ratio.
        working: Of the part of the step that the GPU works, downwards and upwards, by what tells it.
    """

    growth: float
    noise: float
    working: Mapping[ToldFrom, tuple[float, float]]


@hookimpl(trylast=True)
def predict_slowdown(
    graph: ModelGraph, workload: Workload, gpu: Gpu, shares: Sequence[Gpu], alone: Alone
) -> Sequence[Interval]:
    """Predict the step time on each of *shares* against that on the whole *gpu*."""
    timing = timing_of(graph, workload, [gpu, *shares])
    working, told_from = _working(timing, alone)
    growth = timing.busy_s[1:] / timing.busy_s[0]
    low, value, high = slowdowns(np.full(len(shares), working), growth, told_from, _shipped())
    return [
        _NONE if share is gpu else Interval(value=float(value[i]), low=float(low[i]), high=float(high[i]))
        for i, share in enumerate(shares)
    ]


def slowdowns(
    working: FloatArray, growth: FloatArray, told_from: ToldFrom, deviations: Deviations
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the low end, the point and the high end of slowdowns, each at least 1.

    Args:
        working: The GPU's own time over the step's, alone on the whole GPU; above 1 counts as 1.
        growth: The GPU's own time on the share over that on the whole GPU; below 1 counts as 1.
        told_from: What tells *working*.
        deviations: How far the truths lie from the point.
    """
    less, more = deviations.working[told_from]
    growth = np.maximum(growth, 1.0)
    low = _joined(working * np.exp(-less), growth ** (1.0 - deviations.growth)) * np.exp(-deviations.noise)
    high = _joined(working * np.exp(more), growth ** (1.0 + deviations.growth)) * np.exp(deviations.noise)
    return np.maximum(low, 1.0), _joined(working, growth), high


def _working(timing: Timing, alone: Alone) -> tuple[float, ToldFrom]:
    """Return the GPU's own time over the step's, alone on the whole GPU, and what tells it."""
    if alone.utilization is not None:
        return alone.utilization, "utilization"
    if alone.step_time_s is not None:
        return float(timing.busy_s[0]) / alone.step_time_s, "step_time"
    return float(timing.busy_s[0] / timing.step_s[0]), "graph"


def _joined(working: FloatArray, growth: FloatArray) -> FloatArray:
    """Return the step's time against before, the GPU's own time being *growth* times as long."""
    before = np.minimum(working, 1.0)
    joined: FloatArray = ((before * growth) ** SHARPNESS + 1.0 - before**SHARPNESS) ** (1.0 / SHARPNESS)
    return joined


@lru_cache(maxsize=1)
def _shipped() -> Deviations:
    """Return the deviations that gpusage comes with."""
    return Deviations(**load("slowdown")["parameters"])
