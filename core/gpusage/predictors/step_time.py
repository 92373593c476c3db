"""Seconds of one step: a roofline for each node, launches beside it."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

from gpusage.predictors.intervals import around, spread
from gpusage.predictors.timing import timing_of
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Gpu, Interval, ModelGraph, Workload

DEVIATION = 0.27
"""Of the logarithm of measured over predicted, on the public measurements that `efficiency` names."""
HOST_DEVIATION = 0.40
"""The same where the host's launches decide: processors and versions of PyTorch differ by a factor of 2."""


@hookimpl(trylast=True)
def predict_step_time(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> Sequence[Interval]:
    """Predict the seconds of one step on each GPU."""
    timing = timing_of(graph, workload, gpus)
    return [
        around(step_s, spread(hypot(DEVIATION, HOST_DEVIATION * host_share), graph))
        for step_s, host_share in zip(timing.step_s.tolist(), timing.host_share.tolist(), strict=True)
    ]
