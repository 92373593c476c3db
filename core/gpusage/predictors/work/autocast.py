"""Automatic mixed precision: which tensors stay in fp32.

Products and convolutions write 2 bytes; layer normalization, softmax and the like write 4; everything else writes as
wide as the widest of what it reads, weights included.

Source:
    PyTorch's list of operators that autocast to float16, to float32, and to the widest input.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum

import numpy as np

from gpusage.predictors.work.operators import OperatorClass, rule_of
from gpusage.predictors.work.structure import Role, Structure
from gpusage_hooks.types import ModelGraph, Node


def widened(graph: ModelGraph, structure: Structure) -> Structure:
    """Return the *structure* of *graph* with kinds told apart by which of their tensors stay in fp32."""
    wide: list[bool] = []
    numbers: dict[tuple[int, bool, tuple[bool, ...]], int] = {}
    kind_of_node = []
    rules = [_widening(node, role) for node, role in zip(structure.kinds, structure.roles.tolist(), strict=True)]
    for number, producers in zip(structure.kind_of_node.tolist(), graph.producers, strict=True):
        inputs = tuple([producer < 0 or wide[producer] for producer in producers])
        rule = rules[number]
        result = rule is _Widening.ALWAYS or (rule is _Widening.AS_READ and True in inputs)
        wide.append(result)
        kind_of_node.append(numbers.setdefault((number, result, inputs), len(numbers)))
    column = np.array(kind_of_node, dtype=np.int64)
    before = [number for number, _, _ in numbers]
    return replace(
        structure,
        kinds=tuple([structure.kinds[number] for number in before]),
        operators=structure.operators[before],
        roles=structure.roles[before],
        wide=np.array([result for _, result, _ in numbers], dtype=bool),
        wide_inputs=tuple([inputs for _, _, inputs in numbers]),
        kind_of_node=column,
        counts=np.bincount(column, minlength=len(numbers)).astype(np.int64),
    )


class _Widening(IntEnum):
    """Whether mixed precision writes a kind's output in 4 bytes."""

    NEVER = 0
    ALWAYS = 1
    AS_READ = 2


def _widening(node: Node, role: int) -> _Widening:
    operator_class = rule_of(node).operator_class
    if role == Role.UNFUSED:
        return _Widening.ALWAYS
    if role in (Role.SCORES, Role.INSIDE, Role.VALUES, Role.BIAS, Role.ADDED) or operator_class in _NARROW_CLASSES:
        return _Widening.NEVER
    if operator_class is OperatorClass.NORMALIZATION or node.op_type in _WIDE_TYPES:
        return _Widening.ALWAYS
    promotes = operator_class is OperatorClass.ELEMENTWISE or node.op_type == "Concat"
    if (promotes or operator_class is OperatorClass.GATHER) and any(node.parameters):
        return _Widening.ALWAYS
    return _Widening.AS_READ


_NARROW_CLASSES = (
    OperatorClass.CONVOLUTION,
    OperatorClass.PRODUCT,
    OperatorClass.ATTENTION,
    OperatorClass.RECURRENT,
)
_WIDE_TYPES = ("Softmax", "LogSoftmax", "Exp", "Log", "Pow", "Reciprocal", "Softplus", "CumSum", "ReduceL2")
