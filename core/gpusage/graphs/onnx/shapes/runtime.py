"""Operators of ONNX Runtime that ONNX has under another name, or not at all: most of them on numbers of 8 bits."""

from __future__ import annotations

from dataclasses import replace

from gpusage.graphs.onnx.shapes.layers import gemm, recurrence, windows
from gpusage.graphs.onnx.shapes.layout import concat
from gpusage.graphs.onnx.shapes.rule import Call, MismatchError, Result, broadcast, rule

_TRIPLE = 3
"""A quantised tensor comes with its scale and its zero."""


@rule("QLinearAdd", "QLinearMul")
def quantized_arithmetic(call: Call) -> list[Result]:
    """Return the common shape of two quantised inputs."""
    return [Result(broadcast(call.shape(), call.shape(_TRIPLE)), "int8")]


@rule("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax")
def quantized_elementwise(call: Call) -> list[Result]:
    """Return the first input's shape."""
    return [Result(call.shape(), "int8")]


@rule("QLinearConcat")
def quantized_concat(call: Call) -> list[Result]:
    """Return the quantised inputs, which stand behind the output's scale and zero, one after the other."""
    return concat(replace(call, inputs=call.inputs[2::_TRIPLE]))


@rule("QGemm")
def quantized_gemm(call: Call) -> list[Result]:
    """Return the product of two quantised matrices; without a scale of its own it is real."""
    (result,) = gemm(replace(call, inputs=call.inputs[: 2 * _TRIPLE : _TRIPLE]))
    return [Result(result.shape, "int8" if call.has(7) else "float")]


@rule("DynamicQuantizeLSTM")
def quantized_recurrence(call: Call) -> list[Result]:
    """Return what the recurrence does; its hidden size is said."""
    return recurrence(call)


@rule("MatMulBnb4")
def packed_product(call: Call) -> list[Result]:
    """Return the product with a matrix that is packed to four bits an element."""
    return [Result((*call.shape()[:-1], call.whole("N", 0)), call.type())]


@rule("BlockedConv")
def blocked_convolution(call: Call) -> list[Result]:
    """Return the output of a convolution whose channels are filled up to whole blocks."""
    weight = call.shape(1)
    return [Result((call.shape()[0], weight[0], *windows(call, call.list("kernel_shape") or weight[2:])), call.type())]


@rule("ReorderInput")
def reorder_input(call: Call) -> list[Result]:
    """Return the input with its channels in blocks."""
    return [Result(call.shape(), call.type())]


@rule("ReorderOutput")
def reorder_output(call: Call) -> list[Result]:
    """Return the input with as many channels as it had before they were filled up."""
    shape = call.shape()
    if len(shape) < 2 or call.whole("channels_last", 0):  # noqa: PLR2004 - batch and channels
        raise MismatchError
    return [Result((shape[0], call.whole("channels", shape[1]), *shape[2:]), call.type())]
