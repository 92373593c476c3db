"""Training with products in fp8, as Transformer Engine and torchao do it: everything else is as in bf16.

Linear layers multiply numbers of 1 byte, forward and backward, but for the one that makes the model's output; what
passes between layers, attentions, gradients and weights keep their bytes. What a product reads is cast before it:
inputs, weights, and in the backward pass the gradients of outputs.

Source:
    NVIDIA's user guide of Transformer Engine, "Using FP8 and FP4 with Transformer Engine"; torchao's README of
    ``torchao.float8`` (``tensorwise`` scaling). Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpusage.devices.precisions import FLOAT_BYTES
from gpusage.predictors.arrays import BoolArray
from gpusage.predictors.work.checkpoints import Checkpoints
from gpusage.predictors.work.lowering import Lowering, bytes_per_weight

CAST_TRAFFIC = 6.0
"""Bytes to cast one number of 2 bytes: it is read for the largest of its tensor, read once more, and written twice, by
rows and by columns, for a product in fp8 sums along both operands' rows."""


class Casts(NamedTuple):
    """The casts of a step to fp8, all of the mean size.

    Attributes:
        kernel_count: Of all.
        element_count: Of one of them.
    """

    kernel_count: float
    element_count: float


def narrow_products(lowering: Lowering) -> BoolArray:
    """Return the kinds of products that are of fp8: linear layers, but for the model's outputs and adapters."""
    of_weight = bytes_per_weight(lowering.operator_class, lowering.structure, "fp8")
    narrow: BoolArray = (of_weight < FLOAT_BYTES["fp8"]) & (lowering.parameter_bytes > 0) & lowering.matrix_units
    return narrow


def casts_of(lowering: Lowering, narrow: BoolArray, checkpoints: Checkpoints | None) -> Casts:
    """Return the casts of a training step; what several products read, as queries, keys and values do, is cast once.

    Args:
        lowering: Of the model.
        narrow: The kinds of products that are of fp8.
        checkpoints: From which blocks are computed once more.
    """
    structure = lowering.structure
    is_narrow = narrow[structure.kind_of_node]
    reads = is_narrow[structure.destinations]
    source, reader = structure.sources[reads], structure.destinations[reads]
    shares = np.bincount(reader, 1.0 / np.bincount(source)[source], len(is_narrow))
    inputs = np.bincount(structure.kind_of_node, np.where(shares > 0, shares, is_narrow), len(narrow))
    counts = structure.counts * narrow
    again = 1.0 + checkpoints.recomputed_counts(structure) / structure.counts if checkpoints else 1.0
    sizes = np.array([lowering.read_bytes, lowering.parameter_bytes]) / FLOAT_BYTES["fp8-mixed"]
    count = float(((inputs + counts) * again + counts).sum())
    elements = float((sizes * [inputs, counts] * again).sum() + lowering.output_elements @ counts)
    return Casts(count, elements / max(count, 1.0))
