"""The form of a rule: it takes a call of an operator and returns the results. Also which operator has which rule.

1. Shapes are whole numbers; a shape that cannot be known is ``None``, never partly known.
2. A value carries its numbers only if they are few and do not depend on the user's input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from gpusage.graphs.onnx.file import Attribute
from gpusage.graphs.onnx.tensors import MAXIMUM_VALUES, Number
from gpusage_hooks.types import ElementType, Shape


class UnresolvedError(Exception):
    """Say that an output's shape depends on what a user feeds in."""


class MismatchError(Exception):
    """Say that the inputs' shapes do not fit the operator."""


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of one tensor.

    Attributes:
        shape: ``None`` where unknown.
        numbers: Its elements in row-major order, where they are known.
        constant: It depends on nothing but the file.
        weighty: It is made from trained weights (or could be), not from shape arithmetic.
        guessed: Its shape is only likely.
        origin: The step that made it, ``-1 - i`` for the model's input i, ``None`` for a constant of the file.
    """

    shape: Shape | None
    element_type: ElementType = "float"
    numbers: tuple[Number, ...] | None = None
    constant: bool = False
    weighty: bool = False
    guessed: bool = False
    origin: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a rule says of one output."""

    shape: Shape
    element_type: ElementType = "float"
    numbers: tuple[Number, ...] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One operator with its inputs, some of which may be left out."""

    op_type: str
    inputs: tuple[Value | None, ...]
    attributes: Mapping[str, Attribute]
    output_count: int
    opset: int

    def has(self, index: int) -> bool:
        """Tell whether input *index* is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        """Return input *index*."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise MismatchError
        return value

    def shape(self, index: int = 0) -> Shape:
        """Return the shape of input *index*."""
        shape = self.value(index).shape
        if shape is None:
            raise UnresolvedError
        return shape

    def type(self, index: int = 0) -> ElementType:
        """Return the element type of input *index*."""
        return self.value(index).element_type

    def numbers(self, index: int) -> tuple[Number, ...]:
        """Return the elements of input *index*."""
        numbers = self.value(index).numbers
        if numbers is None:
            raise UnresolvedError
        return numbers

    def wholes(self, index: int) -> tuple[int, ...]:
        """Return the elements of input *index* as whole numbers."""
        return tuple(int(number) for number in self.numbers(index))

    def whole(self, name: str, default: int) -> int:
        """Return the attribute *name*."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise MismatchError
        return value

    def list(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the attribute *name*, a list of whole numbers."""
        value = self.attributes.get(name, tuple(default))
        if not isinstance(value, tuple):
            raise MismatchError
        return tuple(int(number) for number in value)

    def word(self, name: str, default: str) -> str:
        """Return the attribute *name*, a text."""
        value = self.attributes.get(name, default)
        if not isinstance(value, str):
            raise MismatchError
        return value

    def given(self, name: str, index: int) -> tuple[int, ...] | None:
        """Return what older operator sets have as attribute *name* and newer ones as input *index*."""
        if name in self.attributes:
            return self.list(name)
        return self.wholes(index) if self.has(index) else None


Rule = Callable[[Call], list[Result]]
RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Register a rule for *op_types*; each has one rule."""

    def register(function: Rule) -> Rule:
        for op_type in op_types:
            if op_type in RULES:
                message = f"Operator {op_type} has two rules."
                raise ValueError(message)
            RULES[op_type] = function
        return function

    return register


def axis_of(axis: int, rank: int) -> int:
    """Return *axis*, which may count from the end, as an index."""
    if not -rank <= axis < rank:
        raise MismatchError
    return axis % rank


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape that *shapes* have together."""
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    rank = max(map(len, shapes), default=0)
    sizes = []
    for column in zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True):
        large = {size for size in column if size != 1}
        if len(large) > 1:
            raise MismatchError
        sizes.append(large.pop() if large else 1)
    return tuple(sizes)


def few(shape: Shape) -> bool:
    """Tell whether a tensor's elements are few enough to be kept."""
    return prod(shape) <= MAXIMUM_VALUES


def spread(numbers: tuple[Number, ...], shape: Shape, target: Shape) -> tuple[Number, ...]:
    """Return the elements of a tensor of *shape* when it is broadcast to *target*."""
    if shape == target:
        return numbers
    if len(numbers) == 1:
        return numbers * prod(target)
    positions = [0]
    padded = (1,) * (len(target) - len(shape)) + tuple(shape)
    step = len(numbers)
    for size, wanted in zip(padded, target, strict=True):
        step = step // size if size else 0
        stride = 0 if size == 1 else step
        positions = [position + stride * index for position in positions for index in range(wanted)]
    return tuple(numbers[position] for position in positions)


def picked(numbers: tuple[Number, ...], shape: Shape, chosen: Sequence[Sequence[int]]) -> tuple[Number, ...]:
    """Return the elements at the indices *chosen* along each axis of a tensor of *shape*."""
    positions = [0]
    step = len(numbers)
    for size, indices in zip(shape, chosen, strict=True):
        step = step // size if size else 0
        positions = [position + step * index for position in positions for index in indices]
    return tuple(numbers[position] for position in positions)


def turned(numbers: tuple[Number, ...], shape: Shape, order: Sequence[int]) -> tuple[Number, ...]:
    """Return the elements of a tensor of *shape* when its axes stand in another *order*."""
    positions = [0]
    for axis in order:
        stride = prod(shape[axis + 1 :])
        positions = [position + stride * index for position in positions for index in range(shape[axis])]
    return tuple(numbers[position] for position in positions)
