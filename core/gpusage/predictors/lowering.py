"""Graph and workload -> numpy columns: the work of each kind of node, forward and backward.

Invariants:

1. One row a kind of node, not one a node; ``counts`` says how often it occurs.
2. Nothing here depends on a GPU.
3. Every column grows or stays where the batch grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from gpusage.predictors.identity import Identity
from gpusage.predictors.operators import (
    Keeps,
    OperatorClass,
    element_count,
    is_grouped,
    rule_of,
)
from gpusage.predictors.structure import Kind, Role, Structure, structure_of, widened
from gpusage_hooks.types import ModelGraph, Node, Workload

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

FLOAT_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
WIDE_BYTES = 4
ELEMENT_BYTES = {"int64": 8, "int32": 4, "int8": 1, "bool": 1}
INDEX_BYTES = 8
MINIMUM_MATRIX_WIDTH = 8
"""Matrix units take their operands eight at a time; narrower sums (an image's three channels) leave them idle."""

_MATRIX_CLASSES = (
    OperatorClass.CONVOLUTION,
    OperatorClass.PRODUCT,
    OperatorClass.BATCHED_PRODUCT,
    OperatorClass.ATTENTION,
    OperatorClass.RECURRENT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """The columns; one entry a kind of node unless said otherwise.

    Attributes:
        operator_class: `OperatorClass` numbers.
        flop: Of one forward execution.
        read_bytes: Activations read by one forward execution.
        parameter_bytes: Weights read by one forward execution.
        written_bytes: Written by one forward execution.
        output_elements: Elements of the outputs, which say how many SMs can work at once.
        output_bytes: Storage that the outputs need; 0 for a view and for what is fused away.
        kept_bytes: What the backward pass needs beside inputs and outputs: masks and indices.
        keeps_inputs: Whether the backward pass needs the inputs again.
        keeps_output: Whether the backward pass needs the output again.
        matrix_units: Whether tensor cores can do the work.
        sequential_steps: How often kernels must follow one another within one execution: time steps of an LSTM.
        inner: Length of the sums: K of a product, channels a group x kernel of a convolution; 1 elsewhere.
        width: Columns that share one operand: N of a product, channels that a group writes, a row that is normalised.
        cast_elements: Elements that mixed precision casts to 2 bytes before the node reads them.
        parameter_count: Elements of all weights.
        parameter_tensor_count: How many weights the optimizer visits.
        structure: Of the graph.
        output_elements_of_model: What the loss reads.
        train: Whether backward passes and the optimizer follow.
    """

    operator_class: IntArray
    flop: FloatArray
    read_bytes: FloatArray
    parameter_bytes: FloatArray
    written_bytes: FloatArray
    output_elements: FloatArray
    output_bytes: FloatArray
    kept_bytes: FloatArray
    keeps_inputs: npt.NDArray[np.bool_]
    keeps_output: npt.NDArray[np.bool_]
    matrix_units: npt.NDArray[np.bool_]
    sequential_steps: FloatArray
    inner: FloatArray
    width: FloatArray
    cast_elements: FloatArray
    parameter_count: int
    parameter_tensor_count: int
    structure: Structure
    output_elements_of_model: float
    train: bool


def lower(graph: ModelGraph, workload: Workload) -> Lowering:
    """Return the columns of *graph* under *workload*, worked out once for each pair."""
    return _lower(Identity(graph), workload.batch_size, workload.mode, workload.precision)


def forward_flop(graph: ModelGraph) -> float:
    """Return the FLOP of one sample's forward pass, a multiply-add being 2."""
    lowering = lower(graph, Workload(batch_size=graph.fixed_batch_size or 1, mode="infer"))
    return float(lowering.flop @ lowering.structure.counts) / (graph.fixed_batch_size or 1)


@lru_cache(maxsize=512)
def _lower(identity: Identity[ModelGraph], batch_size: int, mode: str, precision: str) -> Lowering:
    graph = identity.value
    float_bytes = FLOAT_BYTES[precision]
    structure = structure_of(graph) if float_bytes == WIDE_BYTES else widened(graph)
    rows = [_row(kind, batch_size, float_bytes) for kind in structure.kinds]
    columns = np.array(rows, dtype=np.float64).reshape(-1, _WIDTH).T
    tensors = [len(kind.node.parameters) for kind in structure.kinds]
    return Lowering(
        operator_class=columns[0].astype(np.int64),
        flop=columns[1],
        read_bytes=columns[2],
        parameter_bytes=columns[3],
        written_bytes=columns[4],
        output_elements=columns[5],
        output_bytes=columns[6],
        kept_bytes=columns[7],
        keeps_inputs=columns[8] > 0,
        keeps_output=columns[9] > 0,
        matrix_units=columns[10] > 0,
        sequential_steps=columns[11],
        inner=columns[12],
        width=columns[13],
        cast_elements=columns[14],
        parameter_count=graph.parameter_count,
        parameter_tensor_count=int(np.dot(tensors, structure.counts)) if tensors else 0,
        structure=structure,
        output_elements_of_model=_last_output(graph, structure, batch_size),
        train=mode == "train",
    )


_WIDTH = 15
_NO_WORK = (float(OperatorClass.VIEW), *(0.0,) * 10, 1.0, 1.0, 1.0, 0.0)


def _row(kind: Kind, batch_size: int, float_bytes: int) -> tuple[float, ...]:
    """Return one kind's entry of each column, in the order of `_lower`."""
    node, role = kind.node, kind.role
    rule = rule_of(node)
    operator_class = _operator_class(node, role, rule.operator_class)
    if operator_class is OperatorClass.VIEW:
        return _NO_WORK
    outputs = sum([element_count(shape, batch_size) for shape in node.outputs])
    output_bytes = outputs * ELEMENT_BYTES.get(node.element_type, WIDE_BYTES if kind.wide else float_bytes)
    flop = rule.flop(node, batch_size) if rule.flop else rule.flop_per_output * outputs
    keeps = _keeps(node, role, rule.keeps)
    return (
        operator_class,
        flop,
        _read_bytes(kind, operator_class, batch_size, float_bytes, output_bytes),
        0 if operator_class is OperatorClass.GATHER else sum([prod(shape) for shape in node.parameters]) * float_bytes,
        0 if role in _NEVER_STORED else output_bytes,
        outputs,
        0 if role in _NEVER_STORED else output_bytes,
        _EXTRA_BYTES.get(keeps, 0) * outputs,
        keeps in (Keeps.INPUTS, Keeps.INPUTS_AND_INDICES),
        keeps is Keeps.OUTPUT,
        operator_class in _MATRIX_CLASSES and flop >= 2 * MINIMUM_MATRIX_WIDTH * outputs,
        _sequential_steps(node, operator_class),
        *_sides(node, operator_class, flop, outputs),
        _cast_elements(kind, operator_class, batch_size),
    )


_NEVER_STORED = (Role.SCORES, Role.INSIDE)
_CLASS_OF_ROLE = {
    Role.HOST: OperatorClass.VIEW,
    Role.BIAS: OperatorClass.VIEW,
    Role.COPY: OperatorClass.COPY,
    Role.SCORES: OperatorClass.ATTENTION,
    Role.VALUES: OperatorClass.ATTENTION,
    Role.INSIDE: OperatorClass.ATTENTION,
}
_EXTRA_BYTES = {Keeps.MASK: 1, Keeps.INPUTS_AND_INDICES: INDEX_BYTES}


def _operator_class(node: Node, role: Role, operator_class: OperatorClass) -> OperatorClass:
    """Return the class of a node in its *role*."""
    if role is not Role.PLAIN:
        return _CLASS_OF_ROLE[role]
    if operator_class is OperatorClass.PRODUCT and not node.parameters:
        return OperatorClass.BATCHED_PRODUCT
    if operator_class is OperatorClass.CONVOLUTION and is_grouped(node):
        return OperatorClass.GROUPED_CONVOLUTION
    return operator_class


def _keeps(node: Node, role: Role, keeps: Keeps) -> Keeps:
    """Return what the backward pass needs again; the inside of an attention is computed anew, a factor is known."""
    scales = node.op_type in ("Mul", "Div") and len(node.inputs) == 1 and all(prod(w) <= 1 for w in node.parameters)
    return Keeps.NOTHING if scales or role in (Role.INSIDE, Role.COPY) else keeps


def _read_bytes(
    kind: Kind, operator_class: OperatorClass, batch_size: int, float_bytes: int, output_bytes: float
) -> float:
    """Return the bytes of activations read: a gather reads what it writes, an attention no scores."""
    if kind.role is Role.INSIDE:
        return 0.0
    if operator_class is OperatorClass.GATHER:
        return output_bytes
    inputs, wide = kind.node.inputs, kind.wide_inputs
    if kind.role is Role.VALUES:
        inputs, wide = inputs[-1:], wide[-1:]
    if not wide or operator_class in _CASTING_CLASSES:
        return float(sum([element_count(shape, batch_size) for shape in inputs]) * float_bytes)
    return float(
        sum(
            [
                element_count(shape, batch_size) * (WIDE_BYTES if is_wide else float_bytes)
                for shape, is_wide in zip(inputs, wide, strict=False)
            ]
        )
    )


def _cast_elements(kind: Kind, operator_class: OperatorClass, batch_size: int) -> int:
    """Return the elements that are cast to 2 bytes before a product or a convolution reads them."""
    if not kind.wide_inputs or operator_class not in _CASTING_CLASSES or kind.role is Role.INSIDE:
        return 0
    pairs = zip(kind.node.inputs, kind.wide_inputs, strict=False)
    return sum([element_count(shape, batch_size) for shape, is_wide in pairs if is_wide])


def _sequential_steps(node: Node, operator_class: OperatorClass) -> int:
    """Return the time steps of a recurrence: the one of the first two sizes that does not follow the batch."""
    if operator_class is not OperatorClass.RECURRENT or not node.inputs:
        return 1
    return max((size for size in node.inputs[0][:2] if size > 0), default=1)


def _sides(node: Node, operator_class: OperatorClass, flop: float, outputs: int) -> tuple[float, float]:
    """Return the inner length and the width of the matrix product that a node is, or comes nearest to."""
    shape = node.outputs[0] if node.outputs else ()
    width = max(shape[-1], 1) if shape else 1
    if operator_class in _CONVOLUTIONS:
        groups = dict(node.attributes).get("group", 1)
        channels = shape[1] if len(shape) > 1 else 1
        width = max(channels // groups, 1) if isinstance(groups, int) and groups > 0 else 1
    if operator_class not in _MATRIX_CLASSES and operator_class is not OperatorClass.GROUPED_CONVOLUTION:
        return 1.0, float(width) if operator_class in _ROW_CLASSES else 1.0
    return max(flop / (2.0 * outputs), 1.0) if outputs else 1.0, float(width)


_CASTING_CLASSES = (*_MATRIX_CLASSES, OperatorClass.GROUPED_CONVOLUTION)
_CONVOLUTIONS = (OperatorClass.CONVOLUTION, OperatorClass.GROUPED_CONVOLUTION)
_ROW_CLASSES = (OperatorClass.NORMALIZATION, OperatorClass.REDUCTION)


def _last_output(graph: ModelGraph, structure: Structure, batch_size: int) -> float:
    """Return the elements of the model's last output of floats."""
    for index in structure.unread[::-1].tolist():
        node = graph.nodes[index]
        if node.element_type == "float" and node.outputs:
            return float(element_count(node.outputs[0], batch_size))
    return 0.0
