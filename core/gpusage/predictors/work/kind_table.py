"""Each kind of node at one batch size, as numpy columns: everything that must be read from the nodes themselves.

Invariants:

1. One entry per kind; `gpusage.predictors.work.lowering` needs no loop over nodes any more.
2. Nothing here depends on the mode or on the precision, but for what mixed precision leaves in 4 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from math import prod

import numpy as np

from gpusage.predictors.arrays import BoolArray, FloatArray, IntArray
from gpusage.predictors.work.operators import (
    CLASS_OF_NUMBER,
    NORMALIZATIONS_IN_HALF,
    OPERATORS,
    RULE_OF_NUMBER,
    ElementCounts,
    OperatorClass,
    SavedTensors,
    group_count,
    has_narrow_groups,
    operator_number,
)
from gpusage.predictors.work.structure import Role, Structure
from gpusage_hooks.types import Node, Shape

ELEMENT_BYTES = {"int64": 8, "int32": 4, "int8": 1, "bool": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTable:
    """The columns, one entry per kind; a view has no work, no elements and keeps nothing.

    Attributes:
        operator_class: `OperatorClass` numbers, the role considered.
        flop: Of one forward execution.
        inputs: Elements that the node reads, weights left out: none for a gather, which reads as much as it writes.
        fp32_inputs: How many of them mixed precision leaves in 4 bytes.
        outputs: Elements that it writes.
        element_bytes: Of the outputs, 0 where the precision decides.
        stored: 1 where the outputs reach memory, 0 inside a fused attention.
        gathers: 1 for a gather.
        weight_elements: Of the weights that it reads; a gather reads what it writes.
        weight_tensors: How many weights it has.
        extra_bytes: What it saves in addition to inputs and outputs, for each element of the outputs.
        saves_inputs: As in `lowering.Lowering`, as are *saves_output*, *sequential_steps*, *dependent_loads* and
            *width*.
        non_contiguous: Elements that it copies before it reads them, or reads across.
        sums: Whether it is a sum of products: one that matrix units can do, or a depthwise one.
        matrix: Whether matrix units can do it if its sums are long enough.
        reads_half: Whether mixed precision casts what it reads to 2 bytes.
    """

    operator_class: IntArray
    flop: FloatArray
    inputs: FloatArray
    fp32_inputs: FloatArray
    outputs: FloatArray
    element_bytes: FloatArray
    stored: FloatArray
    gathers: FloatArray
    weight_elements: FloatArray
    weight_tensors: FloatArray
    extra_bytes: FloatArray
    saves_inputs: BoolArray
    saves_output: BoolArray
    sequential_steps: FloatArray
    dependent_loads: FloatArray
    width: FloatArray
    non_contiguous: FloatArray
    sums: BoolArray
    matrix: BoolArray
    reads_half: BoolArray


_CONVOLUTION, _GROUPED_CONVOLUTION, _PRODUCT, _RECURRENT, _VIEW = (
    int(OperatorClass[name]) for name in ("CONVOLUTION", "GROUPED_CONVOLUTION", "PRODUCT", "RECURRENT", "VIEW")
)
# Plain numbers, as columns take four times as long to be compared with a member of an enumeration.
_INSIDE, _VALUES, _UNFUSED, _INTERPOLATION, _NON_CONTIGUOUS = (
    int(role) for role in (Role.INSIDE, Role.VALUES, Role.UNFUSED, Role.INTERPOLATION, Role.NON_CONTIGUOUS)
)
INDEX_BYTES = 8
"""Of an int64: where a maximum pool found each of its outputs."""
SUM_CLASSES = [one for one in OperatorClass if one <= OperatorClass.RECURRENT]
"""Sums of products."""
_MATRIX_CLASSES = [one for one in SUM_CLASSES if one is not OperatorClass.GROUPED_CONVOLUTION]
# Those whose width counts.
_WIDE_CLASSES = (*SUM_CLASSES, OperatorClass.NORMALIZATION, OperatorClass.REDUCTION)
_SAVES_NOTHING = np.array([role in (Role.INSIDE, Role.COPY) for role in Role])
_WORKS, _GATHERS = (
    np.array([float((one is chosen) == is_it) for one in OperatorClass])
    for chosen, is_it in ((OperatorClass.VIEW, False), (OperatorClass.GATHER, True))
)
_READS = np.array([float(one not in (OperatorClass.VIEW, OperatorClass.GATHER)) for one in OperatorClass])
_IS_MATRIX, _IS_SUM, _IS_WIDE = (
    np.isin(list(OperatorClass), classes) for classes in (_MATRIX_CLASSES, SUM_CLASSES, _WIDE_CLASSES)
)
_EXTRA_BYTES = np.array(
    [{SavedTensors.MASK: 1.0, SavedTensors.INPUTS_AND_INDICES: INDEX_BYTES}.get(saves, 0.0) for saves in SavedTensors]
)
_SAVES_INPUT = np.array([saves in (SavedTensors.INPUTS, SavedTensors.INPUTS_AND_INDICES) for saves in SavedTensors])
_SAVES_OUTPUT = np.array([saves is SavedTensors.OUTPUT for saves in SavedTensors])
_IS_STORED = np.array([0.0 if role in (Role.SCORES, Role.INSIDE) else 1.0 for role in Role])
_SAVED_TENSORS = np.array([rule.saves for rule in RULE_OF_NUMBER])
_HAS_FORMULA = np.array([rule.flop is not None for rule in RULE_OF_NUMBER])
_FLOP_PER_OUTPUT = np.array([rule.flop_per_output for rule in RULE_OF_NUMBER])
_CLASS_OF_ROLE = np.array(
    [
        {
            Role.COPY: OperatorClass.COPY,
            **dict.fromkeys((Role.HOST, Role.BIAS), OperatorClass.VIEW),
            **dict.fromkeys((Role.SCORES, Role.VALUES, Role.INSIDE), OperatorClass.ATTENTION),
        }.get(role, -1)
        for role in Role
    ]
)


def kind_table(structure: Structure, batch_size: int) -> KindTable:
    """Return the columns of *structure* at *batch_size*."""
    sizes = ElementCounts(batch_size)
    count = sizes.__getitem__
    nodes, operators, roles = structure.kinds, structure.operators, structure.roles
    classes = _classes(nodes, operators, roles)
    works, gathers = _WORKS[classes], _GATHERS[classes]
    saves = _saved_tensors(nodes, operators, roles, classes)
    # One loop reads the nodes: the elements that they write and those of their weights.
    figures = np.empty((5, len(nodes)))
    for place, node in enumerate(nodes):
        figures[:, place] = (
            sum(map(count, node.outputs)),
            sum(map(count, node.parameters)),
            len(node.parameters),
            ELEMENT_BYTES.get(node.element_type, 0),
            sum(map(count, node.inputs)),
        )
    outputs, weights, weight_tensors, element_bytes, read = figures
    outputs = outputs * works
    inputs, fp32_inputs = _inputs(structure, classes, sizes, read)
    sequential_steps, dependent_loads, width = _lengths(nodes, classes, roles, sizes)

    flop = _FLOP_PER_OUTPUT[operators] * outputs
    chosen = _HAS_FORMULA[operators].nonzero()[0].tolist()
    for index, number in zip(chosen, operators[chosen].tolist(), strict=True):
        formula = RULE_OF_NUMBER[number].flop
        flop[index] = formula(nodes[index], sizes) if formula else 0.0

    return KindTable(
        operator_class=classes,
        flop=flop * works,
        inputs=inputs,
        fp32_inputs=fp32_inputs,
        outputs=outputs,
        element_bytes=element_bytes,
        stored=_IS_STORED[roles],
        gathers=gathers,
        weight_elements=weights * (works - gathers),
        weight_tensors=weight_tensors,
        extra_bytes=_EXTRA_BYTES[saves],
        saves_inputs=_SAVES_INPUT[saves],
        saves_output=_SAVES_OUTPUT[saves],
        sequential_steps=sequential_steps,
        dependent_loads=dependent_loads,
        width=width,
        # A product of what lies in another order adds its bias by a kernel of its own instead (`Role.SEPARATE_BIAS`).
        non_contiguous=(roles == _NON_CONTIGUOUS) * outputs * (classes != _PRODUCT),
        sums=_IS_SUM[classes],
        matrix=_IS_MATRIX[classes] & (roles != _UNFUSED),
        reads_half=_IS_SUM[classes] | _IS_IN_HALF[operators],
    )


def _classes(nodes: Sequence[Node], operators: IntArray, roles: IntArray) -> IntArray:
    operator_classes = CLASS_OF_NUMBER[operators]

    # Groups too narrow for matrix units have kernels of their own; so have products of two activations.
    for index in (operator_classes == _CONVOLUTION).nonzero()[0].tolist():
        if has_narrow_groups(nodes[index]) and group_count(nodes[index]) > 1:
            operator_classes[index] = OperatorClass.GROUPED_CONVOLUTION
    for index in (operator_classes == _PRODUCT).nonzero()[0].tolist():
        if not nodes[index].parameters:
            operator_classes[index] = OperatorClass.BATCHED_PRODUCT

    of_role = _CLASS_OF_ROLE[roles]
    return np.where(of_role >= 0, of_role, operator_classes)


def _saved_tensors(nodes: Sequence[Node], operators: IntArray, roles: IntArray, classes: IntArray) -> IntArray:
    """Return what the backward pass needs again; the inside of an attention is computed anew, a factor is known."""
    saved_tensors = _SAVED_TENSORS[operators]
    saved_tensors[_SAVES_NOTHING[roles] | (classes == _VIEW)] = SavedTensors.NOTHING

    # The gradient of a product with a number needs that number alone.
    for index in ((operators == _MUL) | (operators == _DIV)).nonzero()[0].tolist():
        node = nodes[index]
        if len(node.inputs) == 1 and all(prod(weight) <= 1 for weight in node.parameters):
            saved_tensors[index] = SavedTensors.NOTHING
    return saved_tensors


_MUL, _DIV = operator_number("Mul"), operator_number("Div")
_IS_IN_HALF = np.isin(OPERATORS, NORMALIZATIONS_IN_HALF)


def _inputs(
    structure: Structure, classes: IntArray, sizes: ElementCounts, input_sizes: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return what is read, and what of it is wide; the inside of a fused attention reads nothing, its end no scores."""
    nodes, wide, count = structure.kinds, structure.fp32_inputs, sizes.__getitem__
    fp32_elements = np.zeros(len(nodes))
    if wide:
        pairs = zip(nodes, wide, strict=True)
        fp32_elements[:] = [sum(compress(map(count, node.inputs), flags)) for node, flags in pairs]

    for index in (structure.roles == _VALUES).nonzero()[0].tolist():  # the scores never reach memory
        last = nodes[index].inputs[-1:]
        input_sizes[index] = sum(map(count, last))
        fp32_elements[index] = input_sizes[index] * (bool(wide) and any(wide[index][-1:]))
    reads = _READS[classes] * (structure.roles != _INSIDE)
    return input_sizes * reads, fp32_elements * reads


def _lengths(
    nodes: Sequence[Node], classes: IntArray, roles: IntArray, sizes: ElementCounts
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return time steps of recurrences, waits for memory in a row, and widths of the products nearest to the kinds."""
    steps, loads, widths = np.ones(len(nodes)), np.zeros(len(nodes)), np.ones(len(nodes))

    # Of an input's first two sizes, time is the one where the layout has it; where that follows the batch, the other.
    for index in (classes == _RECURRENT).nonzero()[0].tolist():
        first = nodes[index].inputs[0][:2] if nodes[index].inputs else ()
        in_order = reversed(first) if dict(nodes[index].attributes).get("layout") else first
        steps[index] = next((size for size in in_order if size > 0), 1)

    # A thread that interpolates a pixel waits for memory for all samples and channels in turn.
    for index in (roles == _INTERPOLATION).nonzero()[0].tolist():
        loads[index] = sizes[nodes[index].outputs[0][:2]]

    # The channels that one group of a convolution writes; elsewhere a row of the output.
    is_convolution = (classes <= _GROUPED_CONVOLUTION).tolist()
    for index in _IS_WIDE[classes].nonzero()[0].tolist():
        shape: Shape = nodes[index].outputs[0] if nodes[index].outputs else ()
        if is_convolution[index]:
            widths[index] = max(shape[1] // group_count(nodes[index]) if len(shape) > 1 else 1, 1)
        else:
            widths[index] = max(shape[-1] if shape else 1, 1)
    return steps, loads, widths
