"""Which tensors live at the same time: the walk over the nodes, forward and backward, as PyTorch's autograd keeps them.

Invariants:

1. Nothing here depends on a GPU or on the optimizer.
2. Every figure of `walk` and of `terms` grows or stays where the batch grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from gpusage.predictors.identity import Identity
from gpusage.predictors.lowering import FLOAT_BYTES, FloatArray, Lowering
from gpusage.predictors.operators import OperatorClass, element_count
from gpusage.predictors.structure import Structure
from gpusage_hooks.types import ModelGraph, Node

GRADIENT_BYTES = float(FLOAT_BYTES["fp32"])
"""Autocast leaves weights and their gradients in fp32."""
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Bytes, one entry a node unless said otherwise, weights and the optimizer's state left out.

    Attributes:
        stored: What the node's output takes: 0 for a view.
        kept: Of that and beside it, what waits for the backward pass.
        live: Outputs between being written and being read last; in the backward pass their gradients live as long.
        gradients: Of the weights of this node and of those after it.
        input_bytes: Of the model's inputs, all together.
    """

    stored: FloatArray
    kept: FloatArray
    live: FloatArray
    gradients: FloatArray
    input_bytes: float

    def training_peak(self) -> float:
        """Return the largest sum of inputs, kept tensors, gradients that flow, and weights' gradients."""
        if not len(self.stored):
            return self.input_bytes
        return self.input_bytes + float((np.cumsum(self.kept) + self.live + self.gradients).max())

    def inference_peak(self) -> float:
        """Return the largest sum of inputs and outputs that are still to be read."""
        return self.input_bytes + (float(self.live.max()) if len(self.live) else 0.0)


def walk(graph: ModelGraph, lowering: Lowering, batch_size: int) -> Walk:
    """Return the walk over *graph* as *lowering* stores its tensors."""
    structure = lowering.structure
    stored = lowering.output_bytes[structure.kind_of_node]
    inputs = sum([element_count(shape, batch_size) for _, shape in graph.inputs])
    copying = _copying(Identity(graph), Identity(structure))
    kept = np.where(_is_kept(lowering, copying), stored, 0.0) + lowering.kept_bytes[structure.kind_of_node]
    kept[copying] += lowering.read_bytes[structure.kind_of_node[copying]]
    return Walk(
        stored=stored,
        kept=kept,
        live=_live(structure, stored),
        gradients=_gradients(lowering),
        input_bytes=float(inputs * FLOAT_BYTES["fp32"]),
    )


def _live(structure: Structure, stored: FloatArray) -> FloatArray:
    ends = np.bincount(structure.last_reader + 1, weights=stored, minlength=len(stored) + 1)
    live: FloatArray = np.cumsum(stored - ends[:-1])
    return live


def _is_kept(lowering: Lowering, copying: IntArray) -> BoolArray:
    """Return, a node, whether some backward pass reads its storage: its own, or that of one of its readers."""
    structure = lowering.structure
    keeps_inputs = (lowering.keeps_inputs | _scales_by_weight(Identity(structure)))[structure.kind_of_node]
    keeps_inputs[copying] = False
    kept: BoolArray = lowering.keeps_output[structure.kind_of_node].copy()
    kept[structure.sources[keeps_inputs[structure.destinations]]] = True
    return kept


@lru_cache(maxsize=512)
def _scales_by_weight(structure: Identity[Structure]) -> BoolArray:
    """Return, a kind, whether it multiplies by one learned number, whose gradient needs the input again.

    A learned number is a tensor of one element, a number that the model's code knows has no dimension.
    """
    return np.array([_has_learned_scale(node) for node in structure.value.kinds], dtype=bool)


def _has_learned_scale(node: Node) -> bool:
    return node.op_type == "Mul" and len(node.inputs) == 1 and (1,) in node.parameters


@lru_cache(maxsize=512)
def _copying(key: Identity[ModelGraph], structure: Identity[Structure]) -> IntArray:
    """Return the products with a weight that read a transposed view: they copy it, and keep the copy."""
    graph, kinds = key.value, structure.value.kinds
    products = np.array([node.op_type in ("MatMul", "Gemm") and bool(node.parameters) for node in kinds], bool)
    nodes = np.flatnonzero(products[structure.value.kind_of_node]).tolist() if len(kinds) else []
    return np.array([index for index in nodes if _reads_transposed(graph, index)], dtype=np.int64)


def _reads_transposed(graph: ModelGraph, index: int) -> bool:
    producer = graph.producers[index][0] if graph.producers[index] else -1
    if producer < 0 or graph.nodes[producer].op_type != "Transpose":
        return False
    node = graph.nodes[producer]
    return bool(node.inputs) and bool(node.inputs[0]) and node.inputs[0][-1] != node.outputs[0][-1]


def _gradients(lowering: Lowering) -> FloatArray:
    """Return, a node, the gradients of all weights from this node to the last; a weight used twice counts once."""
    total = lowering.parameter_count * GRADIENT_BYTES
    own = lowering.parameter_bytes[lowering.structure.kind_of_node]
    after: FloatArray = np.cumsum(own[::-1])[::-1]
    read = float(after[0]) if len(after) else 0.0
    return after * (total / read) if read > 0 else np.full(len(own), total)


TRAINING_TERMS = (
    "peak",
    "weights",
    "kept",
    "stored",
    "largest",
    "live",
    "sizes",
    "spatial",
    "pointwise",
    "grouped",
    "spatial_kinds",
    "pointwise_kinds",
    "grouped_kinds",
    "products",
    "batched",
    "inputs",
    "kept_normalized",
    "kept_elementwise",
    "kept_products",
    "written_convolutions",
)
"""What the figures of `terms` are.

peak: `Walk.training_peak`. weights: the gradients of all of them once more, as an update's copies. kept, stored: sums
over the nodes. largest: the largest tensor. live: the most that is live at once. sizes: each kind of tensor once, for
the allocator keeps blocks of one size for the next of this size. spatial, pointwise, grouped: what the largest
convolution reads and writes, by its kernel; *_kinds: each kind of convolution once. products, batched: the same of
matrix products. inputs: of the model. kept_*, written_*: parts of the sums above.
"""

_CLASS = OperatorClass


def terms(lowering: Lowering, tensors: Walk) -> FloatArray:
    """Return `TRAINING_TERMS` in bytes: what the memory of a training step is a weighted sum of."""
    structure = lowering.structure
    passed = lowering.read_bytes + lowering.written_bytes
    classes = lowering.operator_class
    spatial = _is_spatial(Identity(structure))
    dense = classes == _CLASS.CONVOLUTION
    chosen = (
        dense & spatial,
        dense & ~spatial,
        classes == _CLASS.GROUPED_CONVOLUTION,
        classes == _CLASS.PRODUCT,
        (classes == _CLASS.BATCHED_PRODUCT) | (classes == _CLASS.ATTENTION),
    )
    parts = np.where(np.array(chosen), passed, 0.0).reshape(len(chosen), -1)
    most = parts.max(axis=1, initial=0.0)
    kept = np.bincount(classes[structure.kind_of_node], weights=tensors.kept, minlength=len(OperatorClass))
    written = float(lowering.output_bytes @ (structure.counts * (dense | chosen[2])))
    return np.array([
        tensors.training_peak(),
        lowering.parameter_count * GRADIENT_BYTES,
        kept.sum(),
        tensors.stored.sum(),
        lowering.output_bytes.max(initial=0.0),
        tensors.live.max(initial=0.0),
        lowering.output_bytes.sum(),
        *most[:3],
        *parts[:3].sum(axis=1),
        *most[3:],
        tensors.input_bytes,
        kept[_CLASS.BATCH_NORMALIZATION] + kept[_CLASS.NORMALIZATION],
        kept[_CLASS.ELEMENTWISE],
        kept[_CLASS.PRODUCT],
        written,
    ])  # fmt: skip


@lru_cache(maxsize=512)
def _is_spatial(structure: Identity[Structure]) -> BoolArray:
    """Return, a kind, whether it is a convolution whose kernel is larger than one pixel."""
    return np.array([_has_kernel(node) for node in structure.value.kinds], dtype=bool)


def _has_kernel(node: Node) -> bool:
    return bool(node.parameters) and prod(node.parameters[0][2:]) > 1
