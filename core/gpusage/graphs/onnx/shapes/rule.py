"""The registry of shape rules, and the types of a rule: a call of an operator, and its results.

1. A shape is all numbers; an unknown shape is ``None``, never partly known.
2. A value has its elements only if they are few and do not depend on a user's data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from gpusage.graphs.onnx.file import MAXIMUM_VALUES, Attribute, Number
from gpusage_hooks.types import ElementType, Shape


class UnresolvedError(Exception):
    """An output's shape depends on a user's data."""


class MismatchError(Exception):
    """The inputs' shapes do not fit the operator."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of a run.

    Attributes:
        shape: ``None`` if unknown.
        elements: Elements in row-major order, if known.
        constant: Whether the tensor depends on nothing but the file.
        is_weight: Whether the tensor comes, or could come, from trained weights and not from shapes.
        is_estimated: Whether the shape is a guess.
        producer: Step of the tensor, ``-1 - i`` for the model's input i, ``None`` for a constant of the file.
    """

    shape: Shape | None
    element_type: ElementType = "float"
    elements: tuple[Number, ...] | None = None
    constant: bool = False
    is_weight: bool = False
    is_estimated: bool = False
    producer: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """An output of a rule."""

    shape: Shape
    element_type: ElementType = "float"
    elements: tuple[Number, ...] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator; optional inputs may be ``None`` or missing.

    Its methods raise `UnresolvedError` if an input's shape or elements are unknown, `MismatchError` if the input is
    absent or an attribute is of another type.
    """

    op_type: str
    inputs: tuple[Value | None, ...]
    attributes: Mapping[str, Attribute]
    output_count: int
    opset: int

    def has_input(self, index: int) -> bool:
        """Return whether input *index* is present."""
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

    def elements(self, index: int) -> tuple[Number, ...]:
        """Return the elements of input *index*."""
        elements = self.value(index).elements
        if elements is None:
            raise UnresolvedError
        return elements

    def integers(self, index: int) -> tuple[int, ...]:
        """Return the elements of input *index* as whole numbers."""
        return tuple(map(int, self.elements(index)))

    def int_attribute(self, name: str, default: int) -> int:
        """Return the attribute *name*."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise MismatchError
        return value

    def ints_attribute(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the attribute *name*, a list of whole numbers."""
        value = self.attributes.get(name, tuple(default))
        if not isinstance(value, tuple):
            raise MismatchError
        return tuple(map(int, value))

    def text_attribute(self, name: str, default: str) -> str:
        """Return the attribute *name*, a text."""
        value = self.attributes.get(name, default)
        if not isinstance(value, str):
            raise MismatchError
        return value

    def attribute_or_input(self, name: str, index: int) -> tuple[int, ...] | None:
        """Return attribute *name*, or input *index* of newer operator sets; ``None`` without either."""
        if name in self.attributes:
            return self.ints_attribute(name)
        return self.integers(index) if self.has_input(index) else None


Rule = Callable[[Call], list[Result]]
RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Register a rule for *op_types*; each has a single rule."""

    def register(function: Rule) -> Rule:
        for op_type in op_types:
            # A second rule would silently replace the first.
            if op_type in RULES:
                message = f"Operator {op_type} has two rules."
                raise ValueError(message)
            RULES[op_type] = function
        return function

    return register


def normalize_axis(axis: int, rank: int) -> int:
    """Return *axis*, which counts from the end if negative, as an index."""
    if not -rank <= axis < rank:
        raise MismatchError
    return axis % rank


def check_sizes(shape: Shape) -> Shape:
    """Return *shape*.

    Raises:
        MismatchError: A size is below 0.
    """
    if min(shape, default=0) < 0:
        raise MismatchError
    return shape


def broadcast(*shapes: Shape) -> Shape:
    """Return the common shape of *shapes* after broadcasting."""
    # Most operands have equal shapes.
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]

    # Shapes align at their last axes (NumPy's rule, which ONNX took over).
    rank = max(map(len, shapes), default=0)
    sizes = []
    # Aligned at the last axis, as numpy does it.
    for column in zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True):
        large = {size for size in column if size != 1}
        if len(large) > 1:
            raise MismatchError
        sizes.append(large.pop() if large else 1)
    return tuple(sizes)


def is_small(shape: Shape) -> bool:
    """Return whether a tensor of *shape* has few enough elements to compute them."""
    return prod(shape) <= MAXIMUM_VALUES


def broadcast_elements(elements: tuple[Number, ...], shape: Shape, target: Shape) -> tuple[Number, ...]:
    """Return the elements of a tensor of *shape* after broadcasting it to *target*."""
    if shape == target:
        return elements
    if len(elements) == 1:
        return elements * prod(target)

    # Positions in row-major order, axis by axis; an axis of size 1 repeats with stride 0.
    positions = [0]
    # A stride of 0 repeats an axis of size 1.
    padded = (1,) * (len(target) - len(shape)) + tuple(shape)
    step = len(elements)
    for size, wanted in zip(padded, target, strict=True):
        step = step // size if size else 0
        stride = 0 if size == 1 else step
        positions = [position + stride * index for position in positions for index in range(wanted)]
    return tuple(elements[position] for position in positions)


def select_elements(
    elements: tuple[Number, ...], shape: Shape, axis_indices: Sequence[Sequence[int]]
) -> tuple[Number, ...]:
    """Return the elements at *axis_indices* along each axis of a tensor of *shape*."""
    # Row-major: an axis's stride is the number of elements behind one of its entries.
    positions = [0]
    step = len(elements)
    for size, indices in zip(shape, axis_indices, strict=True):
        step = step // size if size else 0
        positions = [position + step * index for position in positions for index in indices]
    return tuple(elements[position] for position in positions)


def transpose_elements(elements: tuple[Number, ...], shape: Shape, order: Sequence[int]) -> tuple[Number, ...]:
    """Return the elements of a tensor of *shape* after permuting its axes to *order*."""
    positions = [0]
    for axis in order:
        stride = prod(shape[axis + 1 :])
        positions = [position + stride * index for position in positions for index in range(shape[axis])]
    return tuple(elements[position] for position in positions)
