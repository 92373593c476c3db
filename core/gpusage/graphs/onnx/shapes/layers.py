"""Operators that do a model's work: convolution, matrix product, pooling, normalisation, recurrence, attention."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, floor

from gpusage.graphs.onnx.shapes.layout import concat
from gpusage.graphs.onnx.shapes.rule import Call, MismatchError, Result, broadcast, check_sizes, normalize_axis, rule
from gpusage_hooks.types import ElementType, Shape

_MATRIX = 2
# The index of the input with the keys of earlier steps.
_PAST = {"Attention": 4, "MultiHeadAttention": 6, "GroupQueryAttention": 3}


@rule("Conv", "ConvInteger", "FusedConv", "QLinearConv", "BlockedConv")
def convolution(call: Call) -> list[Result]:
    """Return the output of a convolution; its weight has the output channels first."""
    data, weight = call.shape(), call.shape(3 if call.op_type == "QLinearConv" else 1)
    # A blocked layout pads its channels to whole blocks, so they need not fit.
    is_blocked = call.op_type == "BlockedConv"
    if not is_blocked and (len(weight) != len(data) or data[1] != weight[1] * call.int_attribute("group", 1)):
        raise MismatchError
    kernel = call.ints_attribute("kernel_shape") or weight[2:]
    kinds: dict[str, ElementType] = {"ConvInteger": "int32", "QLinearConv": "int8"}
    return [Result((data[0], weight[0], *count_windows(call, kernel)), kinds.get(call.op_type, call.type()))]


@rule("ConvTranspose")
def transposed_convolution(call: Call) -> list[Result]:
    """Return the output of a transposed convolution; its weight has the input channels first."""
    data, weight = call.shape(), call.shape(1)
    rank = len(data) - 2
    if len(weight) != len(data) or data[1] != weight[0]:
        raise MismatchError

    channels = weight[1] * call.int_attribute("group", 1)
    if call.ints_attribute("output_shape"):
        return [Result((data[0], channels, *call.ints_attribute("output_shape")), call.type())]

    kernel = call.ints_attribute("kernel_shape") or weight[2:]
    strides, dilations = _spatial_attribute(call, "strides", rank), _spatial_attribute(call, "dilations", rank)
    # Several input sizes give one output size under a stride; output_padding says which one it was.
    extra = call.ints_attribute("output_padding") or (0,) * rank
    if call.text_attribute("auto_pad", "NOTSET").startswith("SAME"):
        sizes = [size * stride for size, stride in zip(data[2:], strides, strict=True)]
    else:
        pads = call.ints_attribute("pads") or (0,) * (2 * rank)
        sizes = [
            strides[axis] * (data[axis + 2] - 1)
            + extra[axis]
            + (kernel[axis] - 1) * dilations[axis]
            + 1
            - pads[axis]
            - pads[axis + rank]
            for axis in range(rank)
        ]
    return [Result(check_sizes((data[0], channels, *sizes)), call.type())]


@rule("MaxPool", "AveragePool", "LpPool", "QLinearAveragePool")
def pooling(call: Call) -> list[Result]:
    """Return the output of a pooling; MaxPool may also return the indices of the maxima."""
    data = call.shape()
    kernel = call.ints_attribute("kernel_shape")
    if len(kernel) != len(data) - 2:
        raise MismatchError
    shape = (data[0], data[1], *count_windows(call, kernel))
    return [Result(shape, call.type()), Result(shape, "int64")]


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "QLinearGlobalAveragePool")
def global_pooling(call: Call) -> list[Result]:
    """Return one number per channel."""
    data = call.shape()
    return [Result((*data[:2], *(1 for _ in data[2:])), call.type())]


@rule("RoiAlign", "MaxRoiPool")
def region_pooling(call: Call) -> list[Result]:
    """Return one small image for each region."""
    height, width = call.ints_attribute("pooled_shape") or (
        call.int_attribute("output_height", 1),
        call.int_attribute("output_width", 1),
    )
    return [Result((call.shape(1)[0], call.shape()[1], height, width), call.type())]


@rule(
    *("MatMul", "MatMulInteger", "FusedMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "GemmFastGelu"),
    "QLinearMatMul",
)
def product(call: Call) -> list[Result]:
    """Return the product of stacks of matrices."""
    kinds: dict[str, ElementType] = {"MatMulInteger": "int32", "MatMulIntegerToFloat": "float", "QLinearMatMul": "int8"}
    first = _transposed_shape(call.shape(0), swap=call.int_attribute("transA", 0))
    # A quantized matrix has its scale and its zero point behind it.
    second = _transposed_shape(
        call.shape(3 if call.op_type == "QLinearMatMul" else 1), swap=call.int_attribute("transB", 0)
    )
    return [Result(_product_shape(first, second), kinds.get(call.op_type, call.type()))]


@rule("Gemm", "FusedGemm")
def gemm(call: Call) -> list[Result]:
    """Return the product of two matrices, to which a third may be added."""
    first = _transposed_shape(call.shape(0), swap=call.int_attribute("transA", 0))
    second = _transposed_shape(call.shape(1), swap=call.int_attribute("transB", 0))
    if len(first) != _MATRIX or len(second) != _MATRIX:
        raise MismatchError
    return [Result(_product_shape(first, second), call.type())]


@rule("MatMulNBits", "MatMulBnb4")
def packed_product(call: Call) -> list[Result]:
    """Return the product with a matrix that is packed to a few bits an element."""
    return [Result((*call.shape()[:-1], call.int_attribute("N", 0)), call.type())]


@rule("Einsum")
def einsum(call: Call) -> list[Result]:
    """Return the output of the equation; without ``->`` it has each label that occurs once, in alphabetical order."""
    # Spaces have no meaning in an equation.
    equation = call.text_attribute("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(call.inputs):
        raise MismatchError

    sizes: dict[str, int] = {}
    dots: list[Shape] = []
    for index, term in enumerate(terms):
        shape = call.shape(index)
        leading, ellipsis, trailing = term.partition("...")
        # The dots stand for as many axes as the labels leave.
        inner = len(shape) - len(leading) - len(trailing)
        if inner < 0 or (inner and not ellipsis):
            raise MismatchError
        dots.append(shape[len(leading) : len(leading) + inner])
        named = (*shape[: len(leading)], *shape[len(leading) + inner :])
        for label, size in zip(leading + trailing, named, strict=True):
            if sizes.setdefault(label, size) in {1, size}:
                sizes[label] = size

    if not arrow:
        right = "..." * ("..." in left) + "".join(sorted(label for label in sizes if left.count(label) == 1))
    leading, ellipsis, trailing = right.partition("...")
    try:
        middle = broadcast(*dots) if ellipsis else ()
        shape = (*(sizes[label] for label in leading), *middle, *(sizes[label] for label in trailing))
    except KeyError as error:
        raise MismatchError from error
    return [Result(shape, call.type())]


@rule("BatchNormalization", "FusedBatchNormalization")
def batch_normalization(call: Call) -> list[Result]:
    """Return the input's shape, and in training the running statistics."""
    return [Result(call.shape(), call.type()), *(Result(call.shape(1), call.type()) for _ in range(4))]


@rule("LayerNormalization", "SimplifiedLayerNormalization")
def layer_normalization(call: Call) -> list[Result]:
    """Return the input's shape, and the mean and deviation of each row."""
    shape = call.shape()
    axis = normalize_axis(call.int_attribute("axis", -1), len(shape))
    row = (*shape[:axis], *(1 for _ in shape[axis:]))
    return [Result(shape, call.type()), Result(row), Result(row)]


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_layer_normalization(call: Call) -> list[Result]:
    """Return the input's shape, each row's mean and deviation, and the sum before normalization."""
    shape = call.shape()
    row = (*shape[:-1], 1)
    return [Result(shape, call.type()), Result(row), Result(row), Result(shape, call.type())]


@rule("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM")
def recurrence(call: Call) -> list[Result]:
    """Return the state of every step, and the last ones."""
    data = call.shape()
    if len(data) != 3:  # sequence, batch, features
        raise MismatchError

    hidden = call.int_attribute("hidden_size", call.shape(2)[-1])
    directions = 2 if call.text_attribute("direction", "forward") == "bidirectional" else 1
    # layout 1 has the batch first (operator set 14).
    if call.int_attribute("layout", 0):
        batch, steps = data[:2]
        last = (batch, directions, hidden)
        every: Shape = (batch, steps, directions, hidden)
    else:
        steps, batch = data[:2]
        last = (directions, batch, hidden)
        every = (steps, directions, batch, hidden)
    return [Result(every, call.type()), Result(last, call.type()), Result(last, call.type())]


@rule("Attention", "MultiHeadAttention", "GroupQueryAttention")
def attention(call: Call) -> list[Result]:
    """Return one row per query, as wide as the values of all heads; with four dimensions heads are an axis.

    ONNX Runtime can pack query, key and value into one input, or key and value.
    """
    query, heads = call.shape(), call.int_attribute("q_num_heads", call.int_attribute("num_heads", 1))
    kv_heads = call.int_attribute("kv_num_heads", heads)
    batch, steps = query[:2]
    past = call.shape(_PAST[call.op_type])[-2] if call.has_input(_PAST[call.op_type]) else 0
    if len(query) == 4:  # batch, heads, sequence, features
        key, value = call.shape(1), call.shape(2)
        out: Shape = (*query[:3], value[3])
        present = [(*key[:2], key[2] + past, key[3]), (*value[:2], value[2] + past, value[3])]
        return [Result(out, call.type()), *(Result(shape, call.type()) for shape in present)]

    if not call.has_input(1):
        # Without sizes query, key and value are equally wide for each head.
        widths = call.ints_attribute("qkv_hidden_sizes") or (query[-1] * kv_heads // max(1, heads + 2 * kv_heads),)
        size = query[-1] if len(query) == 5 else widths[-1] // max(1, kv_heads)  # ..., heads, 3, size
        length, key_size = steps, size
    else:
        key = call.shape(1)
        length = key[2] if len(key) == 4 else key[1]  # batch, heads, sequence, features
        key_size = key[-1] if len(key) > 3 else key[-1] // max(1, kv_heads)  # heads are an axis
        value = call.shape(2) if call.has_input(2) else key
        size = value[-1] if len(value) > 3 else value[-1] // max(1, kv_heads)

    caches: list[Shape] = [(batch, kv_heads, length + past, one) for one in (key_size, size)]
    if call.op_type == "Attention" and not call.has_input(1):
        caches = [(2, *caches[0])]  # one tensor holds both
    return [Result((batch, steps, heads * size), call.type()), *(Result(shape, call.type()) for shape in caches)]


def count_windows(call: Call, kernel: tuple[int, ...]) -> list[int]:
    """Return how many windows of *kernel* fit each spatial axis of the first input.

    Source:
        ONNX operator specification, Conv and MaxPool: pads, strides, dilations, auto_pad and ceil_mode.
    """
    sizes = call.shape()[2:]
    rank = len(sizes)
    if len(kernel) != rank:
        raise MismatchError

    strides, dilations = _spatial_attribute(call, "strides", rank), _spatial_attribute(call, "dilations", rank)
    pads = call.ints_attribute("pads") or (0,) * (2 * rank)
    mode = call.text_attribute("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        return [ceil(size / stride) for size, stride in zip(sizes, strides, strict=True)]
    if len(pads) != 2 * rank:
        raise MismatchError

    int_attribute = ceil if call.int_attribute("ceil_mode", 0) else floor
    counts = []
    for axis, size in enumerate(sizes):
        # VALID is the mode without padding, whatever pads says.
        padded = size if mode == "VALID" else size + pads[axis] + pads[axis + rank]
        count = int_attribute((padded - dilations[axis] * (kernel[axis] - 1) - 1) / strides[axis]) + 1
        if int_attribute is ceil and (count - 1) * strides[axis] >= size + pads[axis]:
            count -= 1  # the last window must begin inside the image or its left padding (ONNX: ceil_mode)
        counts.append(count)
    return list(check_sizes(tuple(counts)))


def _spatial_attribute(call: Call, name: str, rank: int) -> tuple[int, ...]:
    values = call.ints_attribute(name) or (1,) * rank
    if len(values) != rank or min(values, default=1) < 1:
        raise MismatchError
    return values


def _transposed_shape(shape: Shape, *, swap: int) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if swap and len(shape) >= _MATRIX else shape


def _product_shape(first: Shape, second: Shape) -> Shape:
    if not first or not second:
        raise MismatchError

    # A vector is a matrix of one row or one column, and that axis goes again (numpy.matmul).
    left = first if len(first) > 1 else (1, *first)
    right = second if len(second) > 1 else (*second, 1)
    if left[-1] != right[-2]:
        raise MismatchError
    stack = broadcast(left[:-2], right[:-2])
    rows = left[-2:-1] if len(first) > 1 else ()
    columns = right[-1:] if len(second) > 1 else ()
    return (*stack, *rows, *columns)


# Inputs for each quantized tensor: the tensor, its scale and its zero point.
_TRIPLE = 3


@rule("QLinearAdd", "QLinearMul")
def quantized_arithmetic(call: Call) -> list[Result]:
    """Return the common shape of two quantised inputs."""
    return [Result(broadcast(call.shape(), call.shape(_TRIPLE)), "int8")]


@rule("QLinearConcat")
def quantized_concat(call: Call) -> list[Result]:
    """Return the concatenation of the quantized inputs, which follow the output's scale and zero point."""
    return concat(replace(call, inputs=call.inputs[2::_TRIPLE]))


@rule("QGemm")
def quantized_gemm(call: Call) -> list[Result]:
    """Return the product of two quantized matrices; without an output scale it is of floats."""
    (result,) = gemm(replace(call, inputs=call.inputs[: 2 * _TRIPLE : _TRIPLE]))
    return [Result(result.shape, "int8" if call.has_input(7) else "float")]


@rule("ReorderOutput")
def reorder_output(call: Call) -> list[Result]:
    """Return the input with as many channels as it had before the padding."""
    shape = call.shape()
    if len(shape) < 2 or call.int_attribute("channels_last", 0):  # batch and channels
        raise MismatchError
    return [Result((shape[0], call.int_attribute("channels", shape[1]), *shape[2:]), call.type())]
