"""The iterations of ONNX's Loop and Scan: when a loop ends, and the inputs of its body in each iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from gpusage.graphs.onnx.file import OnnxGraph, OnnxNode
from gpusage.graphs.onnx.shapes import Value


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """How a loop iterates.

    Attributes:
        state: The loop-carried values before the first iteration.
        continues: Whether there is an iteration of this number in this state; ``None`` if an input's values decide.
        body_inputs: The inputs of the body in the iteration of this number in this state.
    """

    state: Sequence[Value]
    continues: Callable[[int, Sequence[Value]], bool | None]
    body_inputs: Callable[[int, Sequence[Value]], Sequence[Value]]


def plan_loop(node: OnnxNode, inputs: Sequence[Value | None]) -> LoopPlan | None:
    """Return how a Loop iterates: up to a count, and while its condition, the first part of its state, is true.

    A condition that depends on a user's data counts as true, if there is a count. ``None`` if the count is unknown.
    """
    # An optional input that a node leaves out is missing or None.
    limit, condition, *carried = (*inputs, None, None)[: max(2, len(node.inputs))]
    if any(value is None for value in carried) or (limit is not None and limit.elements is None):
        return None
    maximum = limit.elements[0] if limit is not None and limit.elements else None
    if maximum is not None and not isfinite(maximum):
        return None
    # Without a condition a Loop runs until its count.
    first = condition if condition is not None else Value((), "bool", (True,), constant=True)

    def continues(number: int, state: Sequence[Value]) -> bool | None:
        if maximum is not None and number >= maximum:
            return False
        if state[0].elements:
            return bool(state[0].elements[0])
        return True if maximum is not None else None

    def body_inputs(number: int, state: Sequence[Value]) -> Sequence[Value]:
        return (Value((), "int64", (number,), constant=True), *state)

    return LoopPlan([first, *(value for value in carried if value is not None)], continues, body_inputs)


def plan_scan(node: OnnxNode, inputs: Sequence[Value | None], body: OnnxGraph) -> LoopPlan | None:
    """Return how a Scan iterates: once for each row of its scan inputs; ``None`` if their rows are unknown."""
    count = node.attributes.get("num_scan_inputs")
    output_axes = node.attributes.get("scan_output_axes")
    if not isinstance(count, int) or not 1 <= count <= len(inputs) == len(body.inputs):
        return None  # in operator set 8 a Scan had a batch axis and another signature
    if isinstance(output_axes, tuple) and any(output_axes):
        return None

    # State first, then the inputs to scan, as the operator's signature has them.
    values = [value for value in inputs if value is not None]
    input_axes = node.attributes.get("scan_input_axes")
    axes = [int(axis) for axis in input_axes] if isinstance(input_axes, tuple) else [0] * count
    if len(values) != len(inputs) or len(axes) != count:
        return None

    rows = [_row(value, axis) for value, axis in zip(values[-count:], axes, strict=True)]
    known = [row for row in rows if row is not None]
    # All scanned inputs have as many rows as there are iterations.
    lengths = {length for length, _ in known}
    if len(known) != count or len(lengths) != 1:
        return None
    (length,) = lengths
    return LoopPlan(
        values[:-count], lambda number, _: number < length, lambda _, state: [*state, *(row for _, row in known)]
    )


def _row(value: Value, axis: int) -> tuple[int, Value] | None:
    """Return how many rows *value* has along *axis*, and one of them, which is a view of it."""
    shape = value.shape
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    axis %= len(shape)
    return shape[axis], replace(value, shape=(*shape[:axis], *shape[axis + 1 :]), elements=None)
