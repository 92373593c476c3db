"""Which tensors live at the same time: the walk over the nodes, forward and backward, as PyTorch's autograd keeps them.

Invariants:

1. Nothing here depends on a GPU or on the optimizer.
2. Every figure of `walk` and of `terms` grows or stays when the batch grows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np

from gpusage.devices.precisions import FLOAT_BYTES, parameter_share
from gpusage.predictors.arrays import BoolArray, FloatArray, IntArray
from gpusage.predictors.parallel.data_parallel import is_megatron, sharding_of
from gpusage.predictors.work.checkpoints import Checkpoints
from gpusage.predictors.work.lowering import Lowering
from gpusage.predictors.work.operators import OperatorClass, element_count, operator_number
from gpusage.predictors.work.structure import Structure
from gpusage_hooks.types import ModelGraph, Workload

GRADIENT_BYTES = float(FLOAT_BYTES["fp32"])
"""Autocast leaves weights and their gradients in fp32."""


class Recomputation(NamedTuple):
    """What a training step keeps whose blocks are computed once more, one entry per node.

    Attributes:
        checkpointed: Bytes that the forward pass leaves.
        start: The first node of a node's block; itself outside of blocks.
        materialized: Whether the node is outside of blocks, or in the last one.
    """

    checkpointed: FloatArray
    start: IntArray
    materialized: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Bytes, one entry per node unless noted otherwise, weights and the optimizer's state left out.

    Attributes:
        stored: What the node's output takes: 0 for a view.
        saved: Of that and in addition, what waits for the backward pass.
        live: Outputs between being written and being read last; in the backward pass their gradients live as long.
        gradients: Of the weights of this node and of those after it.
        input_bytes: Of the model's inputs, all together.
        recomputed: What waits where blocks are computed once more; ``None`` where none is.
    """

    stored: FloatArray
    saved: FloatArray
    live: FloatArray
    gradients: FloatArray
    input_bytes: float
    recomputed: Recomputation | None = None

    def training_peak(self) -> float:
        """Return the largest sum of inputs, kept tensors, gradients that flow, and weights' gradients."""
        if not len(self.stored):
            return self.input_bytes
        return self.input_bytes + float((self.saved_until() + self.live + self.gradients).max())

    def other_batches_bytes(self, in_flight: FloatArray | float) -> float:
        """Return what the forward passes of all but one of *in_flight* batches left for their backward passes."""
        waiting = self.saved if self.recomputed is None else self.recomputed.checkpointed
        return float((waiting * (in_flight - 1.0)).sum())

    def saved_until(self) -> FloatArray:
        """Return what of all nodes waits for the backward pass when that is at this node."""
        waiting: FloatArray = np.cumsum(self.saved)
        if self.recomputed is None:
            return waiting
        # Before this node's block, the forward pass left checkpoints alone.
        saved, start = np.cumsum(self.recomputed.checkpointed), self.recomputed.start
        before = np.where(start > 0, saved[start - 1] - waiting[start - 1], 0.0)
        return waiting + before

    def saved_at(self, index: int) -> FloatArray:
        """Return what of each node waits when the backward pass is at the node of *index*."""
        nodes, saved = np.arange(len(self.saved)), self.saved
        if self.recomputed is not None:
            saved = np.where(nodes >= self.recomputed.start[index], saved, self.recomputed.checkpointed)
        return np.where(nodes <= index, saved, 0.0)

    def as_trained(self, share: float, checkpoints: Checkpoints | None, structure: Structure) -> Walk:
        """Return the walk where *share* of the weights has gradients, and blocks start from *checkpoints* once more.

        Activations are kept for all weights, which is most; without blocks nothing less is kept.
        """
        recomputed = None
        if checkpoints is not None and checkpoints.has_blocks:
            saved = checkpoints.checkpointed_bytes(structure, self.stored, self.saved)
            recomputed = Recomputation(saved, checkpoints.start, checkpoints.materialized())
        return replace(self, gradients=self.gradients * share, recomputed=recomputed)

    def with_stored_gradients(self, workload: Workload) -> Walk:
        """Return the walk of a step of *workload*, which may find room taken for the gradients of all weights.

        They take it all the time: those of earlier steps, or in Megatron.
        """
        is_alone = workload.gpus == 1 or not is_megatron(workload)
        if workload.accumulate == 1 and is_alone:
            return self
        return replace(self, gradients=np.full_like(self.gradients, self.gradients.max(initial=0.0)))


def step_walk(
    graph: ModelGraph, lowering: Lowering, workload: Workload, checkpoints: Checkpoints | None = None
) -> Walk:
    """Return the walk over *graph* as *workload* runs it; of several steps for an update, the last."""
    share = trained_share(workload) * sharding_of(lowering, workload).gradients
    tensors = walk(graph, lowering, workload.batch_size).as_trained(share, checkpoints, lowering.structure)
    return tensors.with_stored_gradients(workload)


def number_share(workload: Workload) -> float:
    """Return what a trained weight, its gradient and its state take against 4 bytes each; peft's adapters take all."""
    return 1.0 if workload.lora else parameter_share(workload.precision)


def trained_share(workload: Workload) -> float:
    """Return the trained share of the weights, times what each of them takes against 4 bytes."""
    return workload.trainable * number_share(workload)


def walk(graph: ModelGraph, lowering: Lowering, batch_size: int) -> Walk:
    """Return the walk over *graph* as *lowering* stores its tensors."""
    structure, kinds = lowering.structure, lowering.structure.kind_of_node
    stored = lowering.output_bytes[kinds]

    # A backward pass reads a node's storage for the node itself, or for one of its readers. A product that reads a
    # transposed view copies it and keeps the copy instead.
    copying = _copying_products(graph, lowering)
    saves_inputs = (lowering.saves_inputs | _scales_by_weight(structure))[kinds]
    saves_inputs[copying] = False
    is_saved = lowering.saves_output[kinds]
    is_saved[structure.sources[saves_inputs[structure.destinations]]] = True
    saved = stored * is_saved + lowering.saved_bytes[kinds]
    saved[copying] += lowering.read_bytes[kinds[copying]]

    # An output lives until its last reader has run.
    ends = np.bincount(structure.last_reader + 1, weights=stored, minlength=len(stored) + 1)

    inputs = sum([element_count(shape, batch_size) for _, shape in graph.inputs])
    return Walk(
        stored=stored,
        saved=saved,
        live=np.cumsum(stored - ends[:-1]),
        gradients=_gradients(lowering),
        input_bytes=float(inputs * FLOAT_BYTES["fp32"]),
    )


def _scales_by_weight(structure: Structure) -> BoolArray:
    """Return for each kind whether it multiplies by one learned number; that number's gradient needs the input again.

    A learned number is a tensor of one element. A number that is written in the model's code has no dimension.
    """
    scales: BoolArray = structure.operators == _MUL
    for index in scales.nonzero()[0].tolist():
        node = structure.kinds[index]
        scales[index] = len(node.inputs) == 1 and (1,) in node.parameters
    return scales


_MUL, _MATMUL, _GEMM = map(operator_number, ("Mul", "MatMul", "Gemm"))


def _copying_products(graph: ModelGraph, lowering: Lowering) -> IntArray:
    """Return the products with a weight that read a transposed view: they copy it, and keep the copy."""
    operators = lowering.structure.operators
    products = (lowering.operator_class == _PRODUCT_CLASS) & ((operators == _MATMUL) | (operators == _GEMM))

    copying = []
    for index in products[lowering.structure.kind_of_node].nonzero()[0].tolist():
        producer = graph.producers[index][0] if graph.producers[index] else -1
        if producer < 0 or graph.nodes[producer].op_type != "Transpose":
            continue
        # A transpose that leaves the last size where it was is read as it lies.
        node = graph.nodes[producer]
        if node.inputs and node.inputs[0] and node.inputs[0][-1] != node.outputs[0][-1]:
            copying.append(index)
    return np.array(copying, dtype=np.int64)


def _gradients(lowering: Lowering) -> FloatArray:
    """Return for each node the gradients of all weights from this node to the last."""
    total = lowering.parameter_count * GRADIENT_BYTES
    own = lowering.parameter_bytes[lowering.structure.kind_of_node]
    after: FloatArray = np.cumsum(own[::-1])[::-1]

    # Scaled to the model's own count: a weight that two nodes read has one gradient.
    read = float(after[0]) if len(after) else 0.0
    return after * (total / read) if read > 0 else np.full(len(own), total)


class TrainingTerms(NamedTuple):
    """What the memory of a training step is a weighted sum of, each in bytes.

    Attributes:
        peak: `Walk.training_peak`.
        weights: The gradients of all of them once more, as an update's copies.
        saved: Sum over the nodes.
        stored: Sum over the nodes.
        largest: The largest tensor.
        live: The most that is live at once.
        sizes: Each kind of tensor once, for the allocator keeps blocks of one size for the next of this size.
        spatial: What the largest convolution reads and writes whose kernel is more than one pixel.
        pointwise: The same of those with a kernel of one pixel.
        grouped: The same of those in groups.
        spatial_kinds: Each kind of such a convolution once; *pointwise_kinds* and *grouped_kinds* are alike.
        products: What the largest matrix product with a weight reads and writes.
        batched: The same of those without a weight.
        inputs: Of the model.
        saved_normalized: The part of *saved* in normalizations; *saved_elementwise* and *saved_products* are alike.
        written_convolutions: The part of *stored* that convolutions write.
    """

    peak: float
    weights: float
    saved: float
    stored: float
    largest: float
    live: float
    sizes: float
    spatial: float
    pointwise: float
    grouped: float
    spatial_kinds: float
    pointwise_kinds: float
    grouped_kinds: float
    products: float
    batched: float
    inputs: float
    saved_normalized: float
    saved_elementwise: float
    saved_products: float
    written_convolutions: float


TRAINING_TERMS = TrainingTerms._fields


_CLASS = OperatorClass
_CONVOLUTION, _PRODUCT_CLASS = int(_CLASS.CONVOLUTION), int(_CLASS.PRODUCT)
_CONVOLVES = np.array([one in (_CLASS.CONVOLUTION, _CLASS.GROUPED_CONVOLUTION) for one in OperatorClass])
_SPATIAL, _POINTWISE, _GROUPED, _PRODUCT, _BATCHED = range(5)
_GROUPS = np.arange(5)[:, np.newaxis]
# Which of the terms for convolutions and products a class counts for.
_GROUP_OF_CLASS = np.array([
    {
        _CLASS.CONVOLUTION: _SPATIAL,
        _CLASS.GROUPED_CONVOLUTION: _GROUPED,
        _CLASS.PRODUCT: _PRODUCT,
        _CLASS.BATCHED_PRODUCT: _BATCHED,
        _CLASS.ATTENTION: _BATCHED,
    }.get(one, -1)
    for one in OperatorClass
])  # fmt: skip


def terms(lowering: Lowering, tensors: Walk) -> TrainingTerms:
    """Return the terms of a training step."""
    structure, classes = lowering.structure, lowering.operator_class

    # Of blocks that are computed once more, one counts in full: no two are there at once.
    stored, saved, again = tensors.stored, tensors.saved, tensors.recomputed
    if again is not None:
        stored, saved = stored * again.materialized, np.where(again.materialized, saved, again.checkpointed)
    saved_by_class = np.bincount(classes[structure.kind_of_node], weights=saved, minlength=len(OperatorClass)).tolist()

    # What convolutions and products read and write, by group: of the largest, and of each kind once.
    group = np.where(_is_pointwise(lowering), _POINTWISE, _GROUP_OF_CLASS[classes])
    parts = (group == _GROUPS) * (lowering.read_bytes + lowering.written_bytes)
    most, kinds = parts.max(axis=1, initial=0.0).tolist(), parts.sum(axis=1).tolist()

    return TrainingTerms(
        peak=tensors.training_peak(),
        weights=lowering.parameter_count * GRADIENT_BYTES,
        saved=sum(saved_by_class),
        stored=float(stored.sum()),
        largest=float(lowering.output_bytes.max(initial=0.0)),
        live=float(tensors.live.max(initial=0.0)),
        sizes=float(lowering.output_bytes.sum()),
        spatial=most[_SPATIAL],
        pointwise=most[_POINTWISE],
        grouped=most[_GROUPED],
        spatial_kinds=kinds[_SPATIAL],
        pointwise_kinds=kinds[_POINTWISE],
        grouped_kinds=kinds[_GROUPED],
        products=most[_PRODUCT],
        batched=most[_BATCHED],
        inputs=tensors.input_bytes,
        saved_normalized=saved_by_class[_CLASS.BATCH_NORMALIZATION] + saved_by_class[_CLASS.NORMALIZATION],
        saved_elementwise=saved_by_class[_CLASS.ELEMENTWISE],
        saved_products=saved_by_class[_CLASS.PRODUCT],
        written_convolutions=float(stored @ _CONVOLVES[classes][structure.kind_of_node]),
    )


def _is_pointwise(lowering: Lowering) -> BoolArray:
    """Return for each kind whether it is a dense convolution with a kernel of one pixel."""
    pointwise: BoolArray = lowering.operator_class == _CONVOLUTION
    for index in pointwise.nonzero()[0].tolist():
        parameters = lowering.structure.kinds[index].parameters
        pointwise[index] = not parameters or prod(parameters[0][2:]) <= 1
    return pointwise
