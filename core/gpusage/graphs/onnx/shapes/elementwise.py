"""Element-wise operators, reductions, and operators that make tensors from numbers or numbers from tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from math import prod

from gpusage.graphs.onnx.file import ELEMENT_TYPES, Number, OnnxTensor
from gpusage.graphs.onnx.shapes.rule import (
    Call,
    MismatchError,
    Result,
    UnresolvedError,
    broadcast,
    broadcast_elements,
    check_sizes,
    is_small,
    normalize_axis,
    rule,
)
from gpusage_hooks.types import ElementType

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
    *("ScatterElements", "ScatterND", "TensorScatter", "BiasAdd", "BiasSoftmax", "GroupNorm", "ReorderInput"),
)
def same_as_first(call: Call) -> list[Result]:
    """Return the first input's shape and type."""
    return [Result(call.shape(), call.type())]


@rule(*_UNARY)
def unary(call: Call) -> list[Result]:
    """Return the first input's shape, and the operator's value for each known element."""
    elements = call.value(0).elements
    return [Result(call.shape(), call.type(), elements and _apply(_UNARY[call.op_type], (elements,)))]


@rule(
    *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "Mean", "Sum", "BitShift"),
    *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BiasGelu"),
)
def arithmetic(call: Call) -> list[Result]:
    """Return the inputs' common shape and the first input's type."""
    return [_broadcast_result(call, call.type())]


@rule("And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
def comparison(call: Call) -> list[Result]:
    """Return the inputs' common shape, of truth values."""
    return [_broadcast_result(call, "bool")]


@rule("Where")
def where(call: Call) -> list[Result]:
    """Return the common shape, each element from the second or the third input."""
    # Exporters choose between two sizes with it, so the elements count.
    shape = broadcast(call.shape(0), call.shape(1), call.shape(2))
    columns = _columns(call, shape)
    elements = tuple(yes if holds else no for holds, yes, no in zip(*columns, strict=True)) if columns else None
    return [Result(shape, call.type(1), elements)]


@rule(
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum"),
    *("ReduceLogSumExp", "ReduceSumSquare"),
)
def reduction(call: Call) -> list[Result]:
    """Return the shape with the reduced axes of size 1, or without them."""
    shape = call.shape()
    # Without axes a reduction is over all of them, or, by this attribute, over none.
    default = () if call.int_attribute("noop_with_empty_axes", 0) else tuple(range(len(shape)))
    axes = {normalize_axis(axis, len(shape)) for axis in call.attribute_or_input("axes", 1) or default}
    keep = call.int_attribute("keepdims", 1)
    sizes = tuple(1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes)
    elements = call.value(0).elements
    reduce = _REDUCE.get(call.op_type)
    if elements and reduce and len(axes) == len(shape):
        return [Result(sizes, call.type(), (reduce(elements),))]

    return [Result(sizes, call.type())]


@rule("ArgMax", "ArgMin")
def extreme(call: Call) -> list[Result]:
    """Return the shape without an axis, or with the axis of size 1."""
    shape = call.shape()
    place = normalize_axis(call.int_attribute("axis", 0), len(shape))
    keep = call.int_attribute("keepdims", 1)
    sizes = tuple(1 if axis == place else size for axis, size in enumerate(shape) if keep or axis != place)
    return [Result(sizes, "int64")]


def _broadcast_result(call: Call, element_type: str) -> Result:
    shape = broadcast(*(call.shape(index) for index in range(len(call.inputs))))
    kind = call.type() if element_type != "bool" else "bool"
    columns = _columns(call, shape)
    operation = _operation(call) if columns and len(columns) == 2 else None  # two operands
    return Result(shape, kind, _apply(operation, columns) if operation and columns else None)


def _operation(call: Call) -> Callable[[Number, Number], Number] | None:
    int_attribute = call.type() != "float"
    if call.op_type == "Div":
        # ONNX rounds whole quotients towards 0; beyond 53 bits a float is not exact.
        return (lambda a, b: int(a / b) if abs(a) < 2**52 else a // b) if int_attribute else (lambda a, b: a / b)
    if call.op_type == "Pow":
        return _power
    return _BINARY.get(call.op_type)


def _power(base: Number, exponent: Number) -> Number:
    """Return a small power; a large power cannot be a size, and takes long to compute."""
    if abs(base) >= _MAXIMUM_NUMBER or not 0 <= exponent <= _MAXIMUM_EXPONENT:
        raise OverflowError
    power: Number = base**exponent
    return power


def _columns(call: Call, shape: tuple[int, ...]) -> list[tuple[Number, ...]] | None:
    """Return the inputs' elements, each broadcast to *shape*; ``None`` if an input's are unknown."""
    if not is_small(shape):
        return None

    columns = []
    for index in range(len(call.inputs)):
        elements = call.value(index).elements
        if elements is None:
            return None
        columns.append(broadcast_elements(elements, call.shape(index), shape))
    return columns


def _apply(
    operation: Callable[..., Number], columns: list[tuple[Number, ...]] | tuple[tuple[Number, ...], ...]
) -> tuple[Number, ...] | None:
    """Return the value of *operation* for each row; ``None`` if a value is undefined or beyond 64 bits."""
    try:
        # All or nothing: a size that is partly known is of no use.
        elements = tuple(operation(*row) for row in zip(*columns, strict=True))
        return elements if all(-_MAXIMUM_NUMBER <= number < _MAXIMUM_NUMBER for number in elements) else None
    except (ArithmeticError, ValueError, TypeError):
        return None


@rule("Shape")
def shape_of(call: Call) -> list[Result]:
    """Return the sizes of the input."""
    shape = call.shape()
    start, end = call.int_attribute("start", 0), call.attributes.get("end")
    # start and end came with operator set 15.
    part = shape[slice(start, end if isinstance(end, int) else None)]
    return [Result((len(part),), "int64", part)]


@rule("Size")
def size_of(call: Call) -> list[Result]:
    """Return the input's number of elements."""
    return [Result((), "int64", (prod(call.shape()),))]


@rule("Constant")
def constant(call: Call) -> list[Result]:
    """Return the constant in the node's attributes."""
    kinds: Mapping[str, ElementType] = {"value_int": "int64", "value_float": "float"}
    for name, kind in kinds.items():
        number = call.attributes.get(name)
        if isinstance(number, (int, float)):
            return [Result((), kind, (number,))]
    if "value_ints" in call.attributes:
        elements = call.ints_attribute("value_ints")
        return [Result((len(elements),), "int64", elements)]

    floats = call.attributes.get("value_floats")
    if isinstance(floats, tuple):
        return [Result((len(floats),), "float", floats)]
    tensor = call.attributes.get("value", call.attributes.get("sparse_value"))
    if not isinstance(tensor, OnnxTensor):
        raise UnresolvedError
    return [Result(tensor.shape, tensor.element_type, tensor.values)]


@rule("ConstantOfShape")
def constant_of_shape(call: Call) -> list[Result]:
    """Return a number in the shape that the input lists."""
    sizes = call.integers(0)
    tensor = call.attributes.get("value")
    kind: ElementType = tensor.element_type if isinstance(tensor, OnnxTensor) else "float"
    number = (tensor.values if isinstance(tensor, OnnxTensor) else (0.0,)) or None
    return [Result(check_sizes(sizes), kind, number * prod(sizes) if number and is_small(sizes) else None)]


@rule("Range")
def range_(call: Call) -> list[Result]:
    """Return equally spaced numbers."""
    start, limit, delta = (call.elements(index)[0] for index in range(3))
    if not delta:
        raise MismatchError
    # Rounded up: ceil((limit - start) / delta), in whole numbers where these are whole.
    count = max(0, -int((start - limit) // delta))
    elements = tuple(start + delta * index for index in range(count)) if is_small((count,)) else None
    return [Result((count,), call.type(), elements)]


@rule("EyeLike")
def eye(call: Call) -> list[Result]:
    """Return a matrix of the input's shape."""
    return [Result(call.shape(), ELEMENT_TYPES.get(call.int_attribute("dtype", 1), "float"))]


@rule("RandomNormal", "RandomUniform")
def random(call: Call) -> list[Result]:
    """Return a tensor of the shape in the attributes."""
    return [Result(check_sizes(call.ints_attribute("shape")))]


@rule("QuantizeLinear", "DynamicQuantizeLinear")
def quantize(call: Call) -> list[Result]:
    """Return the input in 8 bits, and the scale and zero point that DynamicQuantizeLinear computes."""
    return [Result(call.shape(), "int8"), Result(()), Result((), "int8")]


_KINDS: Mapping[str, ElementType] = {"DequantizeLinear": "float", "IsNaN": "bool", "IsInf": "bool"}


@rule(*_KINDS, "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax")
def same_shape(call: Call) -> list[Result]:
    """Return the first input's shape, of real numbers, truth values or, for quantised operators, 8 bits."""
    return [Result(call.shape(), _KINDS.get(call.op_type, "int8"))]


@rule("NonZero")
def non_zero(call: Call) -> list[Result]:
    """Return the indices of the elements that are not zero."""
    # The number depends on the data. All elements are the most possible, and a share must have room for them.
    return [Result((len(call.shape()), prod(call.shape())), "int64")]
