"""How busy a workload keeps a GPU: the same node times, held against the gaps between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpusage.predictors.intervals import share_around, spread
from gpusage.predictors.timing import timing_of
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Activity, Gpu, ModelGraph, Workload

DEVIATION = 0.30
"""Of the logarithm of the odds, measured over predicted."""


@hookimpl(trylast=True)
def predict_activity(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> Sequence[Activity]:
    """Predict how busy the workload keeps each GPU when alone."""
    timing = timing_of(graph, workload, gpus)
    shares = np.stack([timing.busy_s, timing.sm_s, timing.dram_s]) / timing.step_s
    factor = spread(DEVIATION, graph)
    return [
        Activity(
            gpu_utilization=share_around(busy, factor),
            sm_activity=share_around(sm, factor),
            dram_activity=share_around(dram, factor),
        )
        for busy, sm, dram in shares.T.tolist()
    ]
