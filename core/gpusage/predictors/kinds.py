"""What each kind of node is, as numpy columns: everything that needs a look at the nodes themselves, once a graph.

Invariants:

1. One entry a kind, or one a tensor of a kind; `gpusage.predictors.lowering` needs no loop over nodes any more.
2. The batch size is open: an amount is a factor, and a power of the batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import prod

import numpy as np
import numpy.typing as npt

from gpusage.predictors.identity import Identity
from gpusage.predictors.operators import (
    CLASS_OF_NUMBER,
    NOTHING,
    RULE_OF_NUMBER,
    Amount,
    Keeps,
    OperatorClass,
    elements,
    group_count,
    is_narrow,
    operator_number,
)
from gpusage.predictors.structure import Role, Structure
from gpusage_hooks.types import Node, Shape

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

ELEMENT_BYTES = {"int64": 8, "int32": 4, "int8": 1, "bool": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """`Amount`s as columns."""

    factor: FloatArray
    power: FloatArray

    def at(self, batch_size: int) -> FloatArray:
        """Return the amounts at *batch_size*."""
        found: FloatArray = self.factor * float(batch_size) ** self.power
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """Elements of the tensors of all kinds, one kind's after the other's."""

    kind: IntArray
    amounts: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """The columns, one entry a kind; a view has no work, no elements and keeps nothing.

    Attributes:
        operator_class: `OperatorClass` numbers, the role considered.
        flop: Of one forward execution, where the operator has a formula.
        flop_per_output: Of the others, for each element of the outputs.
        inputs: What the node reads, weights left out: nothing for a gather, which reads as much as it writes.
        outputs: What it writes.
        element_bytes: Of the outputs, 0 where the precision decides.
        stored: 1 where the outputs reach memory, 0 inside a fused attention.
        gathers: 1 for a gather.
        weight_elements: Of the weights that it reads; a gather reads what it writes.
        weight_tensors: How many weights it has.
        extra_bytes: What it keeps beside inputs and outputs, for each element of the outputs.
        keeps_inputs: As in `lowering.Lowering`, as are *keeps_output*, *sequential_steps* and *width*.
        sums: Whether it is a sum of products: one that matrix units can do, or a depthwise one.
        matrix: Whether matrix units can do it if its sums are long enough.
    """

    operator_class: IntArray
    flop: Amounts
    flop_per_output: FloatArray
    inputs: Tensors
    outputs: Tensors
    element_bytes: FloatArray
    stored: FloatArray
    gathers: FloatArray
    weight_elements: FloatArray
    weight_tensors: FloatArray
    extra_bytes: FloatArray
    keeps_inputs: BoolArray
    keeps_output: BoolArray
    sequential_steps: FloatArray
    width: FloatArray
    sums: BoolArray
    matrix: BoolArray


INDEX_BYTES = 8
_MATRIX_CLASSES = (
    OperatorClass.CONVOLUTION,
    OperatorClass.PRODUCT,
    OperatorClass.BATCHED_PRODUCT,
    OperatorClass.ATTENTION,
    OperatorClass.RECURRENT,
)
_SUM_CLASSES = (*_MATRIX_CLASSES, OperatorClass.GROUPED_CONVOLUTION)
_WIDE_CLASSES = (*_SUM_CLASSES, OperatorClass.NORMALIZATION, OperatorClass.REDUCTION)
"""Those whose width counts."""
_IS_MATRIX, _IS_SUM, _IS_WIDE = (
    np.isin(list(OperatorClass), classes) for classes in (_MATRIX_CLASSES, _SUM_CLASSES, _WIDE_CLASSES)
)
_EXTRA_BYTES = np.array([{Keeps.MASK: 1.0, Keeps.INPUTS_AND_INDICES: INDEX_BYTES}.get(keeps, 0.0) for keeps in Keeps])
_IS_STORED = np.array([0.0 if role in (Role.SCORES, Role.INSIDE) else 1.0 for role in Role])
_KEEPS = np.array([rule.keeps for rule in RULE_OF_NUMBER])
_FLOP_PER_OUTPUT = np.array([0.0 if rule.flop else rule.flop_per_output for rule in RULE_OF_NUMBER])
_CLASS_OF_ROLE = np.array(
    [
        {
            Role.HOST: OperatorClass.VIEW,
            Role.BIAS: OperatorClass.VIEW,
            Role.COPY: OperatorClass.COPY,
            Role.SCORES: OperatorClass.ATTENTION,
            Role.VALUES: OperatorClass.ATTENTION,
            Role.INSIDE: OperatorClass.ATTENTION,
        }.get(role, -1)
        for role in Role
    ]
)


def kinds_of(structure: Structure) -> Kinds:
    """Return the columns of *structure*, worked out once for each structure."""
    return _kinds(Identity(structure))


@lru_cache(maxsize=512)
def _kinds(key: Identity[Structure]) -> Kinds:
    nodes, operators, roles = key.value.kinds, key.value.operators, key.value.roles
    classes, width = _classes(nodes, operators, roles)
    works = (classes != OperatorClass.VIEW).astype(np.float64)
    gathers = (classes == OperatorClass.GATHER).astype(np.float64)
    keeps = np.where(works > 0, _keeps(nodes, operators, roles), Keeps.NOTHING)
    flop = _amounts([_flop(node, number) for node, number in zip(nodes, operators.tolist(), strict=True)])
    weights = np.array([sum(map(prod, node.parameters)) for node in nodes], dtype=np.float64)
    return Kinds(
        operator_class=classes,
        flop=Amounts(factor=flop.factor * works, power=flop.power),
        flop_per_output=_FLOP_PER_OUTPUT[operators],
        inputs=_tensors([_read(*kind) for kind in zip(nodes, classes.tolist(), roles.tolist(), strict=True)]),
        outputs=_tensors([_written(*kind) for kind in zip(nodes, classes.tolist(), strict=True)]),
        element_bytes=np.array([ELEMENT_BYTES.get(node.element_type, 0) for node in nodes], dtype=np.float64),
        stored=_IS_STORED[roles],
        gathers=gathers,
        weight_elements=weights * (works - gathers),
        weight_tensors=np.array([len(node.parameters) for node in nodes], dtype=np.float64),
        extra_bytes=_EXTRA_BYTES[keeps],
        keeps_inputs=(keeps == Keeps.INPUTS) | (keeps == Keeps.INPUTS_AND_INDICES),
        keeps_output=keeps == Keeps.OUTPUT,
        sequential_steps=_sequential_steps(nodes, classes),
        width=np.where(_IS_WIDE[classes], width, 1.0),
        sums=_IS_SUM[classes],
        matrix=_IS_MATRIX[classes],
    )


def _classes(nodes: Sequence[Node], operators: IntArray, roles: IntArray) -> tuple[IntArray, FloatArray]:
    """Return each kind's class, and the width of the product that it is or comes nearest to."""
    found = CLASS_OF_NUMBER[operators]
    width = np.array([node.outputs[0][-1] if node.outputs and node.outputs[0] else 1 for node in nodes], np.float64)
    for index in np.flatnonzero(found == OperatorClass.CONVOLUTION).tolist():
        groups = group_count(nodes[index])
        width[index] = _channels(nodes[index]) // groups
        if groups > 1 and is_narrow(nodes[index]):
            found[index] = OperatorClass.GROUPED_CONVOLUTION
    for index in np.flatnonzero(found == OperatorClass.PRODUCT).tolist():
        if not nodes[index].parameters:
            found[index] = OperatorClass.BATCHED_PRODUCT
    of_role = _CLASS_OF_ROLE[roles]
    return np.where(of_role >= 0, of_role, found), np.maximum(width, 1.0)


def _channels(node: Node) -> int:
    shape = node.outputs[0] if node.outputs else ()
    return shape[1] if len(shape) > 1 else 1


def _keeps(nodes: Sequence[Node], operators: IntArray, roles: IntArray) -> IntArray:
    """Return what the backward pass needs again; the inside of an attention is computed anew, a factor is known."""
    found = _KEEPS[operators]
    found[(roles == Role.INSIDE) | (roles == Role.COPY)] = Keeps.NOTHING
    for index in np.flatnonzero((operators == _MUL) | (operators == _DIV)).tolist():
        node = nodes[index]
        if len(node.inputs) == 1 and all(prod(weight) <= 1 for weight in node.parameters):
            found[index] = Keeps.NOTHING
    return found


_MUL, _DIV = operator_number("Mul"), operator_number("Div")


def _flop(node: Node, number: int) -> Amount:
    formula = RULE_OF_NUMBER[number].flop
    return formula(node) if formula else NOTHING


def _sequential_steps(nodes: Sequence[Node], operator_class: IntArray) -> FloatArray:
    """Return the time steps of a recurrence: the one of the first two sizes that does not follow the batch."""
    found = np.ones(len(nodes))
    for index in np.flatnonzero(operator_class == OperatorClass.RECURRENT).tolist():
        sizes = nodes[index].inputs[0][:2] if nodes[index].inputs else ()
        found[index] = max((size for size in sizes if size > 0), default=1)
    return found


def _written(node: Node, operator_class: int) -> tuple[Shape, ...]:
    return () if operator_class == OperatorClass.VIEW else node.outputs


def _read(node: Node, operator_class: int, role: int) -> tuple[Shape, ...]:
    """Return the shapes that are read, and in place of one that is not, nothing: a fused attention reads no scores."""
    if role == Role.INSIDE or operator_class in (OperatorClass.VIEW, OperatorClass.GATHER):
        return (_NO_ELEMENTS,) * len(node.inputs)
    if role == Role.VALUES:
        return (*(_NO_ELEMENTS,) * (len(node.inputs) - 1), *node.inputs[-1:])
    return node.inputs


_NO_ELEMENTS: Shape = (0,)


def _tensors(rows: Sequence[tuple[Shape, ...]]) -> Tensors:
    return Tensors(
        kind=np.repeat(np.arange(len(rows)), [len(row) for row in rows]),
        amounts=_amounts([elements(shape) for row in rows for shape in row]),
    )


def _amounts(rows: Sequence[Amount]) -> Amounts:
    table = np.fromiter(chain.from_iterable(rows), dtype=np.float64, count=2 * len(rows)).reshape(-1, 2)
    return Amounts(factor=table[:, 0], power=table[:, 1])
