"""What the turns of a loop are given, and when a loop ends: ONNX's Loop and Scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from gpusage.graphs.onnx.file import OnnxGraph, OnnxNode
from gpusage.graphs.onnx.shapes import Value


@dataclass(frozen=True, slots=True)
class Turns:
    """How a loop turns.

    Attributes:
        state: What the first turn is given of what each hands on to the next.
        goes_on: Whether there is a turn of that number in that state; ``None`` where only an input's values tell.
        given: What the body's inputs are in that turn.
    """

    state: Sequence[Value]
    goes_on: Callable[[int, Sequence[Value]], bool | None]
    given: Callable[[int, Sequence[Value]], Sequence[Value]]


def loop_turns(node: OnnxNode, inputs: Sequence[Value | None]) -> Turns | None:
    """Return how a Loop turns: so many times, and as long as its condition, the first part of its state, holds.

    Where the condition depends on what a user feeds in, every turn counts.
    """
    limit, condition, *carried = (*inputs, None, None)[: max(2, len(node.inputs))]
    if any(value is None for value in carried) or (limit is not None and limit.numbers is None):
        return None
    most = limit.numbers[0] if limit is not None and limit.numbers else None
    if most is not None and not isfinite(most):
        return None
    first = condition if condition is not None else Value((), "bool", (True,), constant=True)

    def goes_on(number: int, state: Sequence[Value]) -> bool | None:
        holds = state[0].numbers
        if most is not None and number >= most:
            return False
        if holds:
            return bool(holds[0])
        return True if most is not None else None

    def given(number: int, state: Sequence[Value]) -> Sequence[Value]:
        return (Value((), "int64", (number,), constant=True), *state)

    return Turns([first, *(value for value in carried if value is not None)], goes_on, given)


def scan_turns(node: OnnxNode, inputs: Sequence[Value | None], body: OnnxGraph) -> Turns | None:
    """Return how a Scan turns: once for each row of the inputs that it goes through."""
    count = node.attributes.get("num_scan_inputs")
    stacked = node.attributes.get("scan_output_axes")
    if not isinstance(count, int) or not 1 <= count <= len(inputs) == len(body.inputs):
        return None  # before operator set 9 a Scan went through a batch
    if isinstance(stacked, tuple) and any(stacked):
        return None
    values = [value for value in inputs if value is not None]
    given_axes = node.attributes.get("scan_input_axes")
    axes = [int(axis) for axis in given_axes] if isinstance(given_axes, tuple) else [0] * count
    through = values[-count:]
    if len(values) != len(inputs) or len(axes) != count:
        return None
    rows = [_row(value, axis) for value, axis in zip(through, axes, strict=True)]
    found = [row for row in rows if row is not None]
    lengths = {length for length, _ in found}
    if len(found) != count or len(lengths) != 1:
        return None
    (length,) = lengths
    return Turns(
        values[:-count], lambda number, _: number < length, lambda _, state: [*state, *(row for _, row in found)]
    )


def _row(value: Value, axis: int) -> tuple[int, Value] | None:
    """Return how many rows *value* has, and one of them, which is a view of it."""
    shape = value.shape
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    place = axis % len(shape)
    return shape[place], replace(value, shape=(*shape[:place], *shape[place + 1 :]), numbers=None)
