"""What it costs that weights are quantised where PyTorch runs the model: they become numbers of 2 bytes for products.

In inference on few tokens a product's own kernel does that; its host launches more. In training, kernels before the
product do it for a whole layer: in the forward pass, once more where blocks are computed again, and, with bitsandbytes,
in the backward pass. GPTQ's layers are written in PyTorch, so autograd keeps what they widened for the backward pass.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpusage.devices.precisions import FLOAT_BYTES, QUANTISED_BYTES
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.work.checkpoints import Checkpoints
from gpusage.predictors.work.lowering import Lowering, bytes_per_weight
from gpusage_hooks.types import Workload

DEQUANTIZATION_LAUNCHES = {"int4": 1.0, "int8": 2.0, "nf4": 4.0, "fp8": 7.0}
"""Of a product whose weights are quantised, beside its own kernel, where PyTorch runs the model: GPTQ's and AWQ's
kernels, bitsandbytes', and those of transformers that scale blocks of fp8. They are fitted on tokens per second that
litgpt's and Qwen's authors published."""


class Dequantization(NamedTuple):
    """How a library widens the weights of one layer in training.

    Attributes:
        traffic_bytes_per_weight: Of all kernels together.
        kernel_count: Those that follow one another on the GPU.
        launch_count: What the host launches and calls.
        in_backward: Whether the backward pass widens once more.
    """

    traffic_bytes_per_weight: float
    kernel_count: float
    launch_count: float
    in_backward: bool


_GPTQ = Dequantization(traffic_bytes_per_weight=16.5, kernel_count=5.0, launch_count=12.0, in_backward=False)
DEQUANTIZATIONS = {
    "nf4": Dequantization(
        traffic_bytes_per_weight=QUANTISED_BYTES["nf4"] + 2.0, kernel_count=1.0, launch_count=4.0, in_backward=True
    ),
    "int4": _GPTQ,
    "int8": _GPTQ,
}
"""bitsandbytes reads what is stored and writes 2 bytes. GPTQ's were chosen with Qwen's published rows in sight."""


class DequantizationWork(NamedTuple):
    """The kernels of a step that widen weights.

    Attributes:
        kernel_count: Of all.
        weight_count: Weights that one of them widens, the mean.
        traffic_bytes: Of one of them.
        launch_count: What the host launches for all.
    """

    kernel_count: float
    weight_count: float
    traffic_bytes: float
    launch_count: float


def dequantization_launches(lowering: Lowering, workload: Workload) -> float:
    """Return what the host launches in addition in inference because weights are quantised."""
    return DEQUANTIZATION_LAUNCHES.get(workload.precision, 0.0) * float(_quantized_counts(lowering, workload).sum())


def dequantization_work(
    lowering: Lowering, workload: Workload, checkpoints: Checkpoints | None
) -> DequantizationWork | None:
    """Return what a training step on quantised weights adds to its products, ``None`` where none is quantised."""
    dequantization, narrow = DEQUANTIZATIONS.get(workload.precision), _quantized_counts(lowering, workload)
    if dequantization is None or not narrow.any():
        return None
    layers = narrow * (2.0 if dequantization.in_backward else 1.0)
    if checkpoints:
        layers += checkpoints.recomputed_counts(lowering.structure) * (narrow > 0)
    count = float(layers.sum())
    weights = float(lowering.parameter_bytes @ layers) / FLOAT_BYTES[workload.precision] / count
    return DequantizationWork(
        kernel_count=dequantization.kernel_count * count,
        weight_count=weights,
        traffic_bytes=dequantization.traffic_bytes_per_weight * weights / dequantization.kernel_count,
        launch_count=dequantization.launch_count * count,
    )


def _quantized_counts(lowering: Lowering, workload: Workload) -> FloatArray:
    """Return for each kind how many of its nodes have quantised weights."""
    narrow = bytes_per_weight(lowering.operator_class, lowering.structure, workload.precision)
    is_narrow = (lowering.parameter_bytes > 0) & (narrow < FLOAT_BYTES[workload.precision])
    counts: FloatArray = np.where(is_narrow, lowering.structure.counts, 0.0)
    return counts
