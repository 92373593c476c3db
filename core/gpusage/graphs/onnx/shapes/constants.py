"""Operators that make tensors from nothing but numbers, or numbers from tensors."""

from __future__ import annotations

from math import prod

from gpusage.graphs.onnx.shapes.rule import Call, MismatchError, Result, UnresolvedError, few, rule
from gpusage.graphs.onnx.tensors import ELEMENT_TYPES, OnnxTensor
from gpusage_hooks.types import ElementType, Shape


@rule("Shape")
def shape_of(call: Call) -> list[Result]:
    """Return the sizes of the input."""
    shape = call.shape()
    start, end = call.whole("start", 0), call.attributes.get("end")
    part = shape[slice(start, end if isinstance(end, int) else None)]
    return [Result((len(part),), "int64", part)]


@rule("Size")
def size_of(call: Call) -> list[Result]:
    """Return how many elements the input has."""
    return [Result((), "int64", (prod(call.shape()),))]


@rule("Constant")
def constant(call: Call) -> list[Result]:
    """Return what the node holds."""
    for name, kind in (("value_int", "int64"), ("value_float", "float")):
        number = call.attributes.get(name)
        if isinstance(number, (int, float)):
            return [Result((), "int64" if kind == "int64" else "float", (number,))]
    if "value_ints" in call.attributes:
        numbers = call.list("value_ints")
        return [Result((len(numbers),), "int64", numbers)]
    reals = call.attributes.get("value_floats")
    if isinstance(reals, tuple):
        return [Result((len(reals),), "float", reals)]
    tensor = call.attributes.get("value", call.attributes.get("sparse_value"))
    if not isinstance(tensor, OnnxTensor):
        raise UnresolvedError
    return [Result(tensor.shape, tensor.element_type, tensor.values)]


@rule("ConstantOfShape")
def constant_of_shape(call: Call) -> list[Result]:
    """Return one number as often as asked."""
    sizes = call.wholes(0)
    tensor = call.attributes.get("value")
    kind: ElementType = tensor.element_type if isinstance(tensor, OnnxTensor) else "float"
    number = (tensor.values if isinstance(tensor, OnnxTensor) else (0.0,)) or None
    return [Result(_whole(sizes), kind, number * prod(sizes) if number and few(sizes) else None)]


@rule("Range")
def range_(call: Call) -> list[Result]:
    """Return equally spaced numbers."""
    start, limit, delta = (call.numbers(index)[0] for index in range(3))
    if not delta:
        raise MismatchError
    count = max(0, -int((start - limit) // delta))
    numbers = tuple(start + delta * index for index in range(count)) if few((count,)) else None
    return [Result((count,), call.type(), numbers)]


@rule("EyeLike")
def eye(call: Call) -> list[Result]:
    """Return a matrix of the input's shape."""
    return [Result(call.shape(), ELEMENT_TYPES.get(call.whole("dtype", 1), "float"))]


@rule("RandomNormal", "RandomUniform")
def random(call: Call) -> list[Result]:
    """Return what was asked for."""
    return [Result(_whole(call.list("shape")))]


@rule("QuantizeLinear", "DynamicQuantizeLinear")
def quantize(call: Call) -> list[Result]:
    """Return the input in 8 bits, and its scale and zero where they are found on the way."""
    return [Result(call.shape(), "int8"), Result(()), Result((), "int8")]


@rule("DequantizeLinear")
def dequantize(call: Call) -> list[Result]:
    """Return the input as real numbers."""
    return [Result(call.shape(), "float")]


@rule("NonZero")
def non_zero(call: Call) -> list[Result]:
    """Return where the input is not zero: at most everywhere."""
    return [Result((len(call.shape()), prod(call.shape())), "int64")]


def _whole(sizes: tuple[int, ...]) -> Shape:
    if min(sizes, default=0) < 0:
        raise MismatchError
    return sizes
