"""What numbers of few bits cost beside products: quantised weights become 2 bytes, and fp8 products need casts.

**Quantised weights** where PyTorch runs the model. In inference on few tokens a product's own kernel widens them; its
host launches more. In training, kernels before the product do it for a whole layer: in the forward pass, once more
where blocks are computed again, and, with bitsandbytes, in the backward pass. GPTQ's layers are written in PyTorch, so
autograd keeps what they widened for the backward pass.

**Training in fp8**, as Transformer Engine and torchao do it. Linear layers multiply numbers of 1 byte, forward and
backward, but for the one that makes the model's output; what passes between layers, attentions, gradients and weights
are as in bf16. What a product reads is cast before it: inputs, weights, and backward the gradients of outputs.

Source:
    NVIDIA's user guide of Transformer Engine, "Using FP8 and FP4 with Transformer Engine"; torchao's README of
    ``torchao.float8`` (``tensorwise`` scaling). Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpusage.devices.precisions import FLOAT_BYTES, QUANTISED_BYTES
from gpusage.predictors.arrays import BoolArray
from gpusage.predictors.work.checkpoints import Checkpoints
from gpusage.predictors.work.lowering import Lowering, bytes_per_weight
from gpusage_hooks.types import Precision, Workload

DEQUANTIZATION_LAUNCHES = {"int4": 1.0, "int8": 2.0, "w8a8": 2.0, "nf4": 4.0, "fp8": 7.0, "bnb-int8": 26.0}
"""Of a product whose weights are quantised, beside its own kernel, where PyTorch runs the model: GPTQ's and AWQ's
kernels, bitsandbytes', and those of transformers that scale blocks of fp8. They are fitted on tokens per second that
litgpt's and Qwen's authors published: of bitsandbytes' int8, which looks for outliers in each input, waits for their
number and multiplies them apart, on litgpt's only row. Nobody has published ``w8a8`` in PyTorch."""


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


_BITSANDBYTES: tuple[Precision, ...] = ("nf4", "bnb-int8")
_GPTQ = Dequantization(traffic_bytes_per_weight=16.5, kernel_count=5.0, launch_count=12.0, in_backward=False)
DEQUANTIZATIONS = {
    **{
        name: Dequantization(
            traffic_bytes_per_weight=QUANTISED_BYTES[name] + 2.0,
            kernel_count=1.0,
            launch_count=DEQUANTIZATION_LAUNCHES[name],
            in_backward=True,
        )
        for name in _BITSANDBYTES
    },
    "int4": _GPTQ,
    "int8": _GPTQ,
}
"""bitsandbytes reads what is stored and writes 2 bytes. GPTQ's were chosen with Qwen's published rows in sight."""


class DequantizationWork(NamedTuple):
    """The kernels of a step that widen weights.

    Attributes:
        launch_count: What the host launches for all.
        kernel_count: Of all; none where the products' own kernels widen, as in inference.
        weight_count: Weights that one of them widens, the mean.
        traffic_bytes: Of one of them.
    """

    launch_count: float
    kernel_count: float = 0.0
    weight_count: float = 0.0
    traffic_bytes: float = 0.0


def dequantization_work(lowering: Lowering, workload: Workload, checkpoints: Checkpoints | None) -> DequantizationWork:
    """Return what a step on quantised weights adds to its products."""
    of_weight = bytes_per_weight(lowering.operator_class, lowering.structure, workload.precision)
    is_narrow = (lowering.parameter_bytes > 0) & (of_weight < FLOAT_BYTES[workload.precision])
    narrow = np.where(is_narrow, lowering.structure.counts, 0.0)
    if not lowering.train:
        return DequantizationWork(DEQUANTIZATION_LAUNCHES[workload.precision] * float(narrow.sum()))

    dequantization = DEQUANTIZATIONS.get(workload.precision)
    if dequantization is None or not narrow.any():
        return DequantizationWork(0.0)
    layers = narrow * (2.0 if dequantization.in_backward else 1.0)
    if checkpoints:
        layers += checkpoints.recomputed_counts(lowering.structure) * (narrow > 0)

    # Layers differ in size; all kernels together move as much as so many of the mean size.
    count = float(layers.sum())
    weights = float(lowering.parameter_bytes @ layers) / FLOAT_BYTES[workload.precision] / count
    return DequantizationWork(
        launch_count=dequantization.launch_count * count,
        kernel_count=dequantization.kernel_count * count,
        weight_count=weights,
        traffic_bytes=dequantization.traffic_bytes_per_weight * weights / dequantization.kernel_count,
    )


CAST_TRAFFIC = 6.0
"""Bytes to cast one number of 2 bytes: it is read for the largest of its tensor, read once more, and written twice, by
rows and by columns, for a product in fp8 sums along both operands' rows."""


def narrow_products(lowering: Lowering) -> BoolArray:
    """Return the kinds of products that are of fp8: linear layers, but for the model's outputs and adapters."""
    of_weight = bytes_per_weight(lowering.operator_class, lowering.structure, "fp8")
    narrow: BoolArray = (of_weight < FLOAT_BYTES["fp8"]) & (lowering.parameter_bytes > 0) & lowering.matrix_units
    return narrow


def casts_of(lowering: Lowering, narrow: BoolArray, checkpoints: Checkpoints | None) -> tuple[float, float]:
    """Return how many casts to fp8 a training step has, and their mean number of elements.

    What several products read, as queries, keys and values do, is cast once.

    Args:
        lowering: Of the model.
        narrow: The kinds of products that are of fp8.
        checkpoints: From which blocks are computed once more.
    """
    structure = lowering.structure
    is_narrow = narrow[structure.kind_of_node]

    # What several products read is cast for the first of them: each has its share of that cast.
    reads = is_narrow[structure.destinations]
    source, reader = structure.sources[reads], structure.destinations[reads]
    shares = np.bincount(reader, 1.0 / np.bincount(source)[source], len(is_narrow))
    inputs = np.bincount(structure.kind_of_node, np.where(shares > 0, shares, is_narrow), len(narrow))

    # Inputs and weights are cast in each forward pass, gradients of outputs once.
    counts = structure.counts * narrow
    again = 1.0 + checkpoints.recomputed_counts(structure) / structure.counts if checkpoints else 1.0
    sizes = np.array([lowering.read_bytes, lowering.parameter_bytes]) / FLOAT_BYTES["fp8-mixed"]
    count = float(((inputs + counts) * again + counts).sum())
    elements = float((sizes * [inputs, counts] * again).sum() + lowering.output_elements @ counts)
    return count, elements / max(count, 1.0)
