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
    NOTHING,
    RULE_OF_NUMBER,
    Amount,
    Keeps,
    OperatorClass,
    elements,
    group_count,
    is_narrow,
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
    """The columns, one entry a kind.

    Attributes:
        operator_class: `OperatorClass` numbers, the role considered.
        keeps: `Keeps` numbers, the role considered.
        flop: Of one forward execution, where the operator has a formula.
        flop_per_output: Of the others, for each element of the outputs.
        inputs: What the node reads, weights left out; no elements where a fused attention reads nothing.
        outputs: What it writes.
        element_bytes: Of the outputs, 0 where the precision decides.
        parameter_elements: Of the weights that it reads.
        parameter_tensors: How many they are.
        sequential_steps: As in `lowering.Lowering`, as is *width*.
    """

    operator_class: IntArray
    keeps: IntArray
    flop: Amounts
    flop_per_output: FloatArray
    inputs: Tensors
    outputs: Tensors
    element_bytes: FloatArray
    parameter_elements: FloatArray
    parameter_tensors: FloatArray
    sequential_steps: FloatArray
    width: FloatArray


_CLASS_OF_ROLE: dict[int, OperatorClass] = {
    Role.HOST: OperatorClass.VIEW,
    Role.BIAS: OperatorClass.VIEW,
    Role.COPY: OperatorClass.COPY,
    Role.SCORES: OperatorClass.ATTENTION,
    Role.VALUES: OperatorClass.ATTENTION,
    Role.INSIDE: OperatorClass.ATTENTION,
}


def kinds_of(structure: Structure) -> Kinds:
    """Return the columns of *structure*, worked out once for each structure."""
    return _kinds(Identity(structure))


@lru_cache(maxsize=512)
def _kinds(key: Identity[Structure]) -> Kinds:
    nodes, roles = key.value.kinds, key.value.roles.tolist()
    rows = [_row(*kind) for kind in zip(nodes, key.value.operators.tolist(), roles, strict=True)]
    columns = np.array(rows, dtype=np.float64).reshape(-1, _WIDTH).T
    return Kinds(
        operator_class=columns[0].astype(np.int64),
        keeps=columns[1].astype(np.int64),
        flop=Amounts(factor=columns[2], power=columns[3]),
        flop_per_output=columns[4],
        inputs=_tensors([_read(node, role) for node, role in zip(nodes, roles, strict=True)]),
        outputs=_tensors([node.outputs for node in nodes]),
        element_bytes=columns[5],
        parameter_elements=columns[6],
        parameter_tensors=columns[7],
        sequential_steps=columns[8],
        width=columns[9],
    )


_WIDTH = 10


def _row(node: Node, number: int, role: int) -> tuple[float, ...]:
    """Return one kind's entry of each column, in the order of `_kinds`."""
    rule = RULE_OF_NUMBER[number]
    operator_class = _operator_class(node, rule.operator_class)
    flop = rule.flop(node) if rule.flop else NOTHING
    return (
        _CLASS_OF_ROLE[role] if role else operator_class,
        _keeps(node, rule.keeps, role),
        *flop,
        0.0 if rule.flop else rule.flop_per_output,
        ELEMENT_BYTES.get(node.element_type, 0),
        sum(map(prod, node.parameters)),
        len(node.parameters),
        _sequential_steps(node) if operator_class is OperatorClass.RECURRENT else 1,
        _width(node, operator_class),
    )


def _operator_class(node: Node, of_rule: OperatorClass) -> OperatorClass:
    if of_rule is OperatorClass.PRODUCT and not node.parameters:
        return OperatorClass.BATCHED_PRODUCT
    if of_rule is OperatorClass.CONVOLUTION and is_narrow(node) and group_count(node) > 1:
        return OperatorClass.GROUPED_CONVOLUTION
    return of_rule


def _keeps(node: Node, of_rule: Keeps, role: int) -> Keeps:
    """Return what the backward pass needs again; the inside of an attention is computed anew, a factor is known."""
    if role in (Role.INSIDE, Role.COPY):
        return Keeps.NOTHING
    if node.op_type in ("Mul", "Div") and len(node.inputs) == 1 and all(prod(size) <= 1 for size in node.parameters):
        return Keeps.NOTHING
    return of_rule


def _sequential_steps(node: Node) -> int:
    """Return the time steps of a recurrence: the one of the first two sizes that does not follow the batch."""
    sizes = node.inputs[0][:2] if node.inputs else ()
    return max((size for size in sizes if size > 0), default=1)


def _width(node: Node, operator_class: OperatorClass) -> int:
    """Return the columns that share one operand: channels that a group writes, else the length of a row."""
    shape = node.outputs[0] if node.outputs else ()
    if operator_class in (OperatorClass.CONVOLUTION, OperatorClass.GROUPED_CONVOLUTION):
        return max(shape[1] // group_count(node), 1) if len(shape) > 1 else 1
    return max(shape[-1], 1) if shape else 1


def _read(node: Node, role: int) -> tuple[Shape, ...]:
    """Return the shapes that are read; a fused attention reads no scores, so that in their place is nothing."""
    if role == Role.INSIDE:
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
