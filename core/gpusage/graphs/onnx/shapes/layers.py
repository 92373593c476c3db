"""Operators that do a model's work: convolution, matrix product, pooling, normalisation, recurrence, attention."""

from __future__ import annotations

from math import ceil, floor

from gpusage.graphs.onnx.shapes.rule import Call, MismatchError, Result, axis_of, broadcast, rule
from gpusage_hooks.types import ElementType, Shape

_MATRIX = 2
_PAST = {"Attention": 4, "MultiHeadAttention": 6, "GroupQueryAttention": 3}
"""The place of the keys of earlier steps."""


@rule("Conv", "ConvInteger", "FusedConv")
def convolution(call: Call) -> list[Result]:
    """Return the output of a convolution; its weight has the output channels first."""
    weight = call.shape(1)
    data = call.shape()
    if len(weight) != len(data) or data[1] != weight[1] * call.whole("group", 1):
        raise MismatchError
    kernel = call.list("kernel_shape") or weight[2:]
    element_type = "int32" if call.op_type == "ConvInteger" else call.type()
    return [Result((data[0], weight[0], *windows(call, kernel)), element_type)]


@rule("QLinearConv")
def quantized_convolution(call: Call) -> list[Result]:
    """Return the output of a convolution on quantized values."""
    data, weight = call.shape(), call.shape(3)
    return [Result((data[0], weight[0], *windows(call, call.list("kernel_shape") or weight[2:])), "int8")]


@rule("ConvTranspose")
def transposed_convolution(call: Call) -> list[Result]:
    """Return the output of a transposed convolution; its weight has the input channels first."""
    data, weight = call.shape(), call.shape(1)
    rank = len(data) - 2
    if len(weight) != len(data) or data[1] != weight[0]:
        raise MismatchError
    channels = weight[1] * call.whole("group", 1)
    if call.list("output_shape"):
        return [Result((data[0], channels, *call.list("output_shape")), call.type())]
    kernel = call.list("kernel_shape") or weight[2:]
    strides, dilations = _per_axis(call, "strides", rank), _per_axis(call, "dilations", rank)
    extra = call.list("output_padding") or (0,) * rank
    if call.word("auto_pad", "NOTSET").startswith("SAME"):
        sizes = [size * stride for size, stride in zip(data[2:], strides, strict=True)]
    else:
        pads = call.list("pads") or (0,) * (2 * rank)
        sizes = [
            strides[axis] * (data[axis + 2] - 1)
            + extra[axis]
            + (kernel[axis] - 1) * dilations[axis]
            + 1
            - pads[axis]
            - pads[axis + rank]
            for axis in range(rank)
        ]
    return [Result(_positive((data[0], channels, *sizes)), call.type())]


@rule("MaxPool", "AveragePool", "LpPool", "QLinearAveragePool")
def pooling(call: Call) -> list[Result]:
    """Return the output of a pooling; MaxPool may also return where it found them."""
    data = call.shape()
    kernel = call.list("kernel_shape")
    if len(kernel) != len(data) - 2:
        raise MismatchError
    shape = (data[0], data[1], *windows(call, kernel))
    return [Result(shape, call.type()), Result(shape, "int64")]


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "QLinearGlobalAveragePool")
def global_pooling(call: Call) -> list[Result]:
    """Return one number per channel."""
    data = call.shape()
    return [Result((*data[:2], *(1 for _ in data[2:])), call.type())]


@rule("RoiAlign", "MaxRoiPool")
def region_pooling(call: Call) -> list[Result]:
    """Return one small picture a region."""
    height, width = call.list("pooled_shape") or (call.whole("output_height", 1), call.whole("output_width", 1))
    return [Result((call.shape(1)[0], call.shape()[1], height, width), call.type())]


@rule("MatMul", "MatMulInteger", "FusedMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "GemmFastGelu")
def product(call: Call) -> list[Result]:
    """Return the product of stacks of matrices."""
    element_type: ElementType = "int32" if call.op_type == "MatMulInteger" else call.type()
    element_type = "float" if call.op_type == "MatMulIntegerToFloat" else element_type
    first = _swapped(call.shape(0), swap=call.whole("transA", 0))
    second = _swapped(call.shape(1), swap=call.whole("transB", 0))
    return [Result(_product(first, second), element_type)]


@rule("QLinearMatMul")
def quantized_product(call: Call) -> list[Result]:
    """Return the product of quantized matrices."""
    return [Result(_product(call.shape(0), call.shape(3)), "int8")]


@rule("Gemm", "FusedGemm")
def gemm(call: Call) -> list[Result]:
    """Return the product of two matrices, to which a third may be added."""
    first = _swapped(call.shape(0), swap=call.whole("transA", 0))
    second = _swapped(call.shape(1), swap=call.whole("transB", 0))
    if len(first) != _MATRIX or len(second) != _MATRIX:
        raise MismatchError
    return [Result(_product(first, second), call.type())]


@rule("MatMulNBits")
def packed_product(call: Call) -> list[Result]:
    """Return the product with a matrix that is packed to a few bits an element."""
    return [Result((*call.shape()[:-1], call.whole("N", 0)), call.type())]


@rule("Einsum")
def einsum(call: Call) -> list[Result]:
    """Return what the equation says."""
    equation = call.word("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(call.inputs):
        raise MismatchError
    sizes: dict[str, int] = {}
    dots: list[Shape] = []
    for index, term in enumerate(terms):
        shape = call.shape(index)
        before, ellipsis, after = term.partition("...")
        inner = len(shape) - len(before) - len(after)
        if inner < 0 or (inner and not ellipsis):
            raise MismatchError
        dots.append(shape[len(before) : len(before) + inner])
        named = (*shape[: len(before)], *shape[len(before) + inner :])
        for letter, size in zip(before + after, named, strict=True):
            if sizes.setdefault(letter, size) in {1, size}:
                sizes[letter] = size
    if not arrow:
        right = "..." * ("..." in left) + "".join(sorted(letter for letter in sizes if left.count(letter) == 1))
    before, ellipsis, after = right.partition("...")
    try:
        middle = broadcast(*dots) if ellipsis else ()
        shape = (*(sizes[letter] for letter in before), *middle, *(sizes[letter] for letter in after))
    except KeyError as error:
        raise MismatchError from error
    return [Result(shape, call.type())]


@rule("BatchNormalization", "FusedBatchNormalization")
def batch_normalization(call: Call) -> list[Result]:
    """Return the input's shape, and in training the running figures."""
    return [Result(call.shape(), call.type()), *(Result(call.shape(1), call.type()) for _ in range(4))]


@rule("LayerNormalization", "SimplifiedLayerNormalization")
def layer_normalization(call: Call) -> list[Result]:
    """Return the input's shape, and the mean and deviation of each row."""
    shape = call.shape()
    axis = axis_of(call.whole("axis", -1), len(shape))
    row = (*shape[:axis], *(1 for _ in shape[axis:]))
    return [Result(shape, call.type()), Result(row), Result(row)]


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_layer_normalization(call: Call) -> list[Result]:
    """Return the input's shape, the rows' figures, and the sum that was normalised."""
    shape = call.shape()
    row = (*shape[:-1], 1)
    return [Result(shape, call.type()), Result(row), Result(row), Result(shape, call.type())]


@rule("LSTM", "GRU", "RNN")
def recurrence(call: Call) -> list[Result]:
    """Return every step's state, and the last one's."""
    data = call.shape()
    if len(data) != 3:  # noqa: PLR2004 - sequence, batch, features
        raise MismatchError
    hidden = call.whole("hidden_size", call.shape(2)[-1])
    directions = 2 if call.word("direction", "forward") == "bidirectional" else 1
    if call.whole("layout", 0):
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
    """Return one row per query, as wide as all heads' values together; in four dimensions heads stand apart.

    ONNX Runtime's three have a packed form: query, key and value are one input, or key and value are.
    """
    query, heads = call.shape(), call.whole("q_num_heads", call.whole("num_heads", 1))
    kv_heads = call.whole("kv_num_heads", heads)
    batch, steps = query[:2]
    past = call.shape(_PAST[call.op_type])[-2] if call.has(_PAST[call.op_type]) else 0
    if len(query) == 4:  # noqa: PLR2004 - batch, heads, sequence, features
        key, value = call.shape(1), call.shape(2)
        out: Shape = (*query[:3], value[3])
        present = [(*key[:2], key[2] + past, key[3]), (*value[:2], value[2] + past, value[3])]
        return [Result(out, call.type()), *(Result(shape, call.type()) for shape in present)]
    if not call.has(1):
        widths = call.list("qkv_hidden_sizes") or (query[-1] * kv_heads // max(1, heads + 2 * kv_heads),)
        size = query[-1] if len(query) == 5 else widths[-1] // max(1, kv_heads)  # noqa: PLR2004 - ..., heads, 3, size
        length, key_size = steps, size
    else:
        key = call.shape(1)
        length = key[2] if len(key) == 4 else key[1]  # noqa: PLR2004 - batch, heads, sequence, features
        key_size = key[-1] if len(key) > 3 else key[-1] // max(1, kv_heads)  # noqa: PLR2004 - heads stand apart
        value = call.shape(2) if call.has(2) else key
        size = value[-1] if len(value) > 3 else value[-1] // max(1, kv_heads)  # noqa: PLR2004 - as above
    caches: list[Shape] = [(batch, kv_heads, length + past, one) for one in (key_size, size)]
    if call.op_type == "Attention" and not call.has(1):
        caches = [(2, *caches[0])]  # one tensor holds both
    return [Result((batch, steps, heads * size), call.type()), *(Result(shape, call.type()) for shape in caches)]


def windows(call: Call, kernel: tuple[int, ...]) -> list[int]:
    """Return how many windows of *kernel* fit each spatial axis of the first input.

    Source:
        ONNX operator specification, Conv and MaxPool: pads, strides, dilations, auto_pad and ceil_mode.
    """
    sizes = call.shape()[2:]
    rank = len(sizes)
    if len(kernel) != rank:
        raise MismatchError
    strides, dilations = _per_axis(call, "strides", rank), _per_axis(call, "dilations", rank)
    pads = call.list("pads") or (0,) * (2 * rank)
    mode = call.word("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        return [ceil(size / stride) for size, stride in zip(sizes, strides, strict=True)]
    if len(pads) != 2 * rank:
        raise MismatchError
    whole = ceil if call.whole("ceil_mode", 0) else floor
    counts = []
    for axis, size in enumerate(sizes):
        padded = size if mode == "VALID" else size + pads[axis] + pads[axis + rank]
        count = whole((padded - dilations[axis] * (kernel[axis] - 1) - 1) / strides[axis]) + 1
        if whole is ceil and (count - 1) * strides[axis] >= size + pads[axis]:
            count -= 1  # the last window must begin inside the picture or its left padding
        counts.append(count)
    return list(_positive(tuple(counts)))


def _per_axis(call: Call, name: str, rank: int) -> tuple[int, ...]:
    values = call.list(name) or (1,) * rank
    if len(values) != rank or min(values, default=1) < 1:
        raise MismatchError
    return values


def _positive(shape: Shape) -> Shape:
    if min(shape, default=0) < 0:
        raise MismatchError
    return shape


def _swapped(shape: Shape, *, swap: int) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if swap and len(shape) >= _MATRIX else shape


def _product(first: Shape, second: Shape) -> Shape:
    if not first or not second:
        raise MismatchError
    left = first if len(first) > 1 else (1, *first)
    right = second if len(second) > 1 else (*second, 1)
    if left[-1] != right[-2]:
        raise MismatchError
    stack = broadcast(left[:-2], right[:-2])
    rows = left[-2:-1] if len(first) > 1 else ()
    columns = right[-1:] if len(second) > 1 else ()
    return (*stack, *rows, *columns)
