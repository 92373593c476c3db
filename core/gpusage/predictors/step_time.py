"""Seconds of one step: a roofline for each node, launches beside it."""

from __future__ import annotations

from collections.abc import Sequence

from gpusage.predictors.intervals import around, spread
from gpusage.predictors.timing import timing_of
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Gpu, Interval, ModelGraph, Workload

DEVIATION = 0.30
"""Of the logarithm of measured over predicted, on the public measurements that `efficiency` names."""


@hookimpl(trylast=True)
def predict_step_time(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> Sequence[Interval]:
    """Predict the seconds of one step on each GPU."""
    factor = spread(DEVIATION, graph)
    return [around(step_s, factor) for step_s in timing_of(graph, workload, gpus).step_s.tolist()]
