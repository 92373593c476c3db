"""Operators that work element by element, and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from math import prod

from gpusage.graphs.onnx.shapes.rule import Call, Result, axis_of, broadcast, few, rule, spread
from gpusage.graphs.onnx.tensors import Number

_MAXIMUM_NUMBER = 2**63
_MAXIMUM_EXPONENT = 8

_UNARY: Mapping[str, Callable[[Number], Number]] = {
    "Neg": lambda a: -a,
    "Abs": abs,
    "Floor": math.floor,
    "Ceil": math.ceil,
    "Round": round,
    "Sqrt": math.sqrt,
    "Not": lambda a: not a,
    "Reciprocal": lambda a: 1 / a,
    "Sign": lambda a: (a > 0) - (a < 0),
    "Relu": lambda a: max(a, 0),
}
_BINARY: Mapping[str, Callable[[Number, Number], Number]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Mod": lambda a, b: a % b,
    "Min": min,
    "Max": max,
    "And": lambda a, b: bool(a) and bool(b),
    "Or": lambda a, b: bool(a) or bool(b),
    "Xor": lambda a, b: bool(a) != bool(b),
    "Equal": lambda a, b: a == b,
    "Less": lambda a, b: a < b,
    "LessOrEqual": lambda a, b: a <= b,
    "Greater": lambda a, b: a > b,
    "GreaterOrEqual": lambda a, b: a >= b,
}
_REDUCE: Mapping[str, Callable[[tuple[Number, ...]], Number]] = {
    "ReduceSum": sum,
    "ReduceProd": prod,
    "ReduceMin": min,
    "ReduceMax": max,
}


@rule(
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Sin", "Sinh", "Tan", "Tanh", "Exp", "Log"),
    *("Elu", "Celu", "Selu", "Gelu", "FastGelu", "QuickGelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish"),
    *("PRelu", "Sigmoid", "Softplus", "Softsign", "Swish", "ThresholdedRelu", "Erf", "Erfc", "Shrink", "BitwiseNot"),
    *("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "LRN", "MeanVarianceNormalization", "CumSum", "CumProd"),
    *("InstanceNormalization", "GroupNormalization", "RMSNormalization", "Clip", "Trilu", "ReverseSequence"),
    *("RandomNormalLike", "RandomUniformLike", "Bernoulli", "RotaryEmbedding", "Scatter"),
    *("ScatterElements", "ScatterND", "TensorScatter", "BiasAdd", "BiasSoftmax", "GroupNorm"),
)
def same_as_first(call: Call) -> list[Result]:
    """Return the first input's shape and type."""
    return [Result(call.shape(), call.type())]


@rule(*_UNARY)
def unary(call: Call) -> list[Result]:
    """Return the first input's shape, and its numbers one by one."""
    numbers = call.value(0).numbers
    return [Result(call.shape(), call.type(), numbers and _tried(_UNARY[call.op_type], (numbers,)))]


@rule(
    *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "Mean", "Sum", "BitShift"),
    *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BiasGelu"),
)
def arithmetic(call: Call) -> list[Result]:
    """Return the inputs' common shape and the first one's type."""
    return [_together(call, call.type())]


@rule("And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
def comparison(call: Call) -> list[Result]:
    """Return the inputs' common shape, of truth values."""
    return [_together(call, "bool")]


@rule("IsNaN", "IsInf")
def test(call: Call) -> list[Result]:
    """Return the first input's shape, of truth values."""
    return [Result(call.shape(), "bool")]


@rule("Where")
def where(call: Call) -> list[Result]:
    """Return the common shape, each number from the one or the other."""
    shape = broadcast(call.shape(0), call.shape(1), call.shape(2))
    columns = _columns(call, shape)
    numbers = tuple(yes if holds else no for holds, yes, no in zip(*columns, strict=True)) if columns else None
    return [Result(shape, call.type(1), numbers)]


@rule(
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum"),
    *("ReduceLogSumExp", "ReduceSumSquare"),
)
def reduction(call: Call) -> list[Result]:
    """Return the shape with the reduced axes of size 1, or gone."""
    shape = call.shape()
    given = call.given("axes", 1)
    if not given:
        given = () if call.whole("noop_with_empty_axes", 0) else tuple(range(len(shape)))
    axes = {axis_of(axis, len(shape)) for axis in given}
    keep = call.whole("keepdims", 1)
    sizes = tuple(1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes)
    numbers = call.value(0).numbers
    reduce = _REDUCE.get(call.op_type)
    if numbers and reduce and len(axes) == len(shape):
        return [Result(sizes, call.type(), (reduce(numbers),))]
    return [Result(sizes, call.type())]


@rule("ArgMax", "ArgMin")
def extreme(call: Call) -> list[Result]:
    """Return the shape without one axis, or with it of size 1."""
    shape = call.shape()
    place = axis_of(call.whole("axis", 0), len(shape))
    keep = call.whole("keepdims", 1)
    return [
        Result(tuple(1 if axis == place else size for axis, size in enumerate(shape) if keep or axis != place), "int64")
    ]


def _together(call: Call, element_type: str) -> Result:
    shape = broadcast(*(call.shape(index) for index in range(len(call.inputs))))
    kind = call.type() if element_type != "bool" else "bool"
    columns = _columns(call, shape)
    operation = _operation(call) if columns and len(columns) == 2 else None  # noqa: PLR2004 - two operands
    return Result(shape, kind, _tried(operation, columns) if operation and columns else None)


def _operation(call: Call) -> Callable[[Number, Number], Number] | None:
    whole = call.type() != "float"
    if call.op_type == "Div":
        return (lambda a, b: int(a / b) if abs(a) < 2**52 else a // b) if whole else (lambda a, b: a / b)
    if call.op_type == "Pow":
        return _power
    return _BINARY.get(call.op_type)


def _power(base: Number, exponent: Number) -> Number:
    """Return a small power; a large one is no size of anything."""
    if abs(base) >= _MAXIMUM_NUMBER or not 0 <= exponent <= _MAXIMUM_EXPONENT:
        raise OverflowError
    power: Number = base**exponent
    return power


def _columns(call: Call, shape: tuple[int, ...]) -> list[tuple[Number, ...]] | None:
    """Return the inputs' numbers, each broadcast to *shape*, where all are known."""
    if not few(shape):
        return None
    columns = []
    for index in range(len(call.inputs)):
        numbers = call.value(index).numbers
        if numbers is None:
            return None
        columns.append(spread(numbers, call.shape(index), shape))
    return columns


def _tried(
    operation: Callable[..., Number], columns: list[tuple[Number, ...]] | tuple[tuple[Number, ...], ...]
) -> tuple[Number, ...] | None:
    """Return *operation* row by row, or ``None`` where a number leaves what a tensor can hold."""
    try:
        numbers = tuple(operation(*row) for row in zip(*columns, strict=True))
        return numbers if all(-_MAXIMUM_NUMBER <= number < _MAXIMUM_NUMBER for number in numbers) else None
    except (ArithmeticError, ValueError, TypeError):
        return None
