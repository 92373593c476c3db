"""The features that predict a workload's activity: node times, kernel sizes, and the data that each step loads."""

from __future__ import annotations

from math import log, prod
from typing import NamedTuple

import numpy as np

from gpusage.predictors.learned.arrays import FloatArray
from gpusage.predictors.times.timing import Timing
from gpusage.predictors.work.generation import Answer
from gpusage.predictors.work.lowering import Lowering
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import ModelGraph

_PASSES = 3
"""A training step runs about three kernels for each forward one."""
_LEAST = 1e-12
"""Seconds, so that a logarithm exists."""
_IS_KERNEL = np.array([one is not OperatorClass.VIEW for one in OperatorClass])


class ActivityFeatures(NamedTuple):
    """The columns, one entry per GPU."""

    log_busy_s: FloatArray
    log_busy_s_per_kernel: FloatArray
    log_kernels: FloatArray
    sm_over_busy: FloatArray
    dram_over_busy: FloatArray
    log_inputs: FloatArray
    log_batch_size: FloatArray
    log_inputs_per_busy_s: FloatArray
    log_flop_per_byte: FloatArray
    log_parameters: FloatArray
    log_outputs: FloatArray
    log_flop_per_kernel: FloatArray


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
"""Of the fields of `ActivityFeatures`, in the artifact and for people."""


class Work(NamedTuple):
    """Those of `ActivityFeatures` that no GPU changes."""

    log_kernels: float
    log_inputs: float
    log_batch_size: float
    log_flop_per_byte: float
    log_parameters: float
    log_outputs: float
    log_flop_per_kernel: float


_OF_WORK = [ActivityFeatures._fields.index(name) for name in Work._fields]


def features_of(work: Work, timing: Timing) -> FloatArray:
    """Return one row per GPU of *timing*, with a column for each of `ActivityFeatures`."""
    rows = np.empty((len(timing.busy_s), len(NAMES)))
    rows[:, _OF_WORK] = work
    columns = ActivityFeatures(*rows.T)
    busy_s = np.maximum(timing.busy_s, _LEAST)
    log_busy_s = np.log(busy_s)
    columns.log_busy_s[:] = log_busy_s
    columns.log_busy_s_per_kernel[:] = log_busy_s - work.log_kernels
    columns.sm_over_busy[:] = timing.sm_s / busy_s
    columns.dram_over_busy[:] = timing.dram_s / busy_s
    columns.log_inputs_per_busy_s[:] = work.log_inputs - log_busy_s
    return rows


def work_of(graph: ModelGraph, lowering: Lowering, batch_size: int, answer: Answer | None = None) -> Work:
    """Return what of one step no GPU changes; *lowering* is of *graph* at *batch_size*, or the first of an *answer*."""
    kernels, flop, traffic = _sums(lowering)
    if answer:
        kernels, flop, traffic = (
            one + answer.token_count * more
            for one, more in zip((kernels, flop, traffic), _sums(answer.token), strict=True)
        )
    inputs = sum(prod(abs(size) for size in shape[1:]) for _, shape in graph.inputs) * batch_size
    return Work(
        log_kernels=log(kernels),
        log_inputs=log(max(inputs, 1)),
        log_batch_size=log(batch_size),
        log_flop_per_byte=log(max(flop, 1.0) / max(traffic, 1.0)),
        log_parameters=log(max(lowering.parameter_count, 1)),
        log_outputs=log(max(lowering.output_elements_of_model, 1.0)),
        log_flop_per_kernel=log(max(flop, 1.0) / kernels),
    )


def _sums(lowering: Lowering) -> tuple[float, float, float]:
    """Return kernels, FLOP and bytes moved."""
    counts = lowering.structure.counts
    passes = _PASSES if lowering.train else 1
    kernels = max(float(counts @ _IS_KERNEL[lowering.operator_class]), 1.0) * passes
    flop = float(counts @ lowering.flop) * passes
    traffic = float(counts @ (lowering.read_bytes + lowering.parameter_bytes + lowering.written_bytes)) * passes
    return kernels, flop, traffic
