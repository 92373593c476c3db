"""What a workload's activity is told from: its node times, its kernels' size, and the data that each step brings in."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, prod

import numpy as np

from gpusage.predictors.lowering import FloatArray, Lowering, lower
from gpusage.predictors.operators import OperatorClass
from gpusage.predictors.timing import Timing, timing_of
from gpusage_hooks.types import Gpu, ModelGraph, Workload

NAMES = (
    "log busy seconds",
    "log busy seconds a kernel",
    "log kernels",
    "SM time over busy time",
    "memory time over busy time",
    "log input elements",
    "log batch size",
    "log input elements over busy seconds",
    "log FLOP a byte",
    "log parameters",
    "log outputs",
    "log FLOP a kernel",
)
_BUSY, _BUSY_A_KERNEL, _KERNELS, _SM, _DRAM, _INPUTS = range(6)
_INPUTS_OVER_BUSY = 7
_PASSES = 3
"""A training step runs about three kernels for each forward one."""
_LEAST = 1e-12
_IS_KERNEL = np.array([one is not OperatorClass.VIEW for one in OperatorClass])


def features_of(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> FloatArray:
    """Return one row a GPU, with a column for each of `NAMES`."""
    return features_with(timing_of(graph, workload, gpus), graph, workload)


def features_with(timing: Timing, graph: ModelGraph, workload: Workload) -> FloatArray:
    """Return the same where the GPUs' times are known."""
    busy_s = np.maximum(timing.busy_s, _LEAST)
    log_busy_s = np.log(busy_s)
    rows = np.empty((len(busy_s), len(NAMES)))
    rows[:] = _work(graph, lower(graph, workload), workload.batch_size)
    rows[:, _BUSY] = log_busy_s
    rows[:, _BUSY_A_KERNEL] = log_busy_s - rows[:, _KERNELS]
    rows[:, _SM] = timing.sm_s / busy_s
    rows[:, _DRAM] = timing.dram_s / busy_s
    rows[:, _INPUTS_OVER_BUSY] = rows[:, _INPUTS] - log_busy_s
    return rows


def _work(graph: ModelGraph, lowering: Lowering, batch_size: int) -> tuple[float, ...]:
    """Return a row with what no GPU changes, and 0 for the rest."""
    counts = lowering.structure.counts
    passes = _PASSES if lowering.train else 1
    kernels = max(float(counts @ _IS_KERNEL[lowering.operator_class]), 1.0) * passes
    flop = float(counts @ lowering.flop) * passes
    traffic = float(counts @ (lowering.read_bytes + lowering.parameter_bytes + lowering.written_bytes)) * passes
    inputs = sum(prod(abs(size) for size in shape[1:]) for _, shape in graph.inputs) * batch_size
    return (
        0.0,
        0.0,
        log(kernels),
        0.0,
        0.0,
        log(max(inputs, 1)),
        log(batch_size),
        0.0,
        log(max(flop, 1.0) / max(traffic, 1.0)),
        log(max(lowering.parameter_count, 1)),
        log(max(lowering.output_elements_of_model, 1.0)),
        log(max(flop, 1.0) / kernels),
    )
