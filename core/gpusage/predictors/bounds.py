"""What no GPU can do: the least time of a step, from its arithmetic, its parameters and the catalogue's peaks.

It is far below what any run takes, so a known step time below it is a mistake, of the unit for example.
"""

from __future__ import annotations

from math import prod

from gpusage.precisions import FLOAT_BYTES, HALF
from gpusage_hooks.types import Gpu, ModelGraph, Precision, Workload

FEWER_MULTIPLICATIONS = 4.0
"""By how much the fastest algorithm for a convolution of 3 x 3 multiplies less than its definition.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, F(4x4, 3x3).
"""
READ_WHOLE = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that read all of their parameters in each step; a lookup reads a few rows."""
WIDE = ("fp32", "tf32")
"""Peaks that may count for any job: a GPU may take TF32 where a job says fp32."""

_WEIGHT_BYTES = {"int8": 1.0, "int4": 0.5}
"""At least: without the scales that `gpusage.precisions.QUANTISED_BYTES` has beside them."""


def least_step_s(graph: ModelGraph, workload: Workload, gpu: Gpu) -> float:
    """Return seconds in which *gpu* cannot make one step, at its peaks: a lower bound of the forward pass alone.

    The arithmetic is counted as the fastest algorithm has it, and the cache is taken to hold as many parameters as fit.
    """
    from gpusage.predictors.question import question_of  # noqa: PLC0415
    from gpusage.predictors.work.lowering import step_flop  # noqa: PLC0415 - numpy, and few users know a step time

    flop = step_flop(question_of(graph, workload).lowering) / FEWER_MULTIPLICATIONS
    read_bytes = max(_parameter_bytes(graph, workload.precision) - gpu.l2_bytes, 0)
    return max(flop / _peak_flop_per_s(gpu, workload.precision), read_bytes / gpu.bandwidth_bytes_per_s)


def _parameter_bytes(graph: ModelGraph, precision: Precision) -> float:
    nodes = (node for node in graph.nodes if node.op_type in READ_WHOLE)
    count = sum(prod(shape) for node in nodes for shape in node.parameters)
    return min(count, graph.parameter_count) * _WEIGHT_BYTES.get(precision, FLOAT_BYTES[precision])


def _peak_flop_per_s(gpu: Gpu, precision: Precision) -> float:
    names = (*WIDE, *HALF) if precision in HALF else WIDE
    return max(rate for name, rate in gpu.peak_flop_per_s.items() if name in names)
