"""How many times as fast a step runs on one GPU as on another; without numpy, so that policies start quickly."""

from __future__ import annotations

from gpusage.predictors.learned.artifacts import pretrained
from gpusage.predictors.learned.intervals import ratio
from gpusage_hooks.types import GpuNeed, Interval


def speedup(of: GpuNeed, over: GpuNeed) -> Interval:
    """Return how many times as fast a step runs on the GPU of *of* as on that of *over*.

    Both predictions miss alike by what is the model's own. How much that is was seen on models held out: more between
    GPUs on which many models were measured, which have a part of their own in `gpusage.predictors.times.residual`.
    """
    parameters = pretrained().step_time
    own = {of.gpu, over.gpu} <= parameters.residual.by_gpu.keys()
    deviations = parameters.deviations
    return ratio(over.step_time_s, of.step_time_s, deviations.shared_own if own else deviations.shared)
