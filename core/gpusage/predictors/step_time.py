"""Seconds of one step: a learned roofline for each node, launches beside it."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, hypot

from gpusage.predictors.efficiency import shipped
from gpusage.predictors.intervals import around, unknown_share
from gpusage.predictors.timing import timing_of
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Gpu, Interval, ModelGraph, Workload


@hookimpl(trylast=True)
def predict_step_time(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> Sequence[Interval]:
    """Predict the seconds of one step on each GPU."""
    timing = timing_of(graph, workload, gpus)
    return [
        around(step_s, exp(_distance(graph, gpu, short_share)))
        for gpu, step_s, short_share in zip(gpus, timing.step_s.tolist(), timing.short_share.tolist(), strict=True)
    ]


def _distance(graph: ModelGraph, gpu: Gpu, short_share: float) -> float:
    """Return how far 90 % of the truths lie from the point, on the logarithmic scale."""
    efficiency = shipped()
    deviations = efficiency.deviations
    unseen = 0.0 if gpu.name in efficiency.gpu_log_factors else deviations.unseen_gpu
    return hypot(deviations.known, unseen, deviations.short * short_share, 2.0 * unknown_share(graph))
