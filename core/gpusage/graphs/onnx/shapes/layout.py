"""Operators that move, cut, join, rearrange and resize, on shapes and on the small numbers behind shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, prod

from gpusage.graphs.onnx.file import ELEMENT_TYPES, Number
from gpusage.graphs.onnx.shapes.rule import (
    Call,
    MismatchError,
    Result,
    broadcast,
    broadcast_elements,
    check_sizes,
    is_small,
    normalize_axis,
    rule,
    select_elements,
    transpose_elements,
)
from gpusage_hooks.types import ElementType, Shape


@rule("Identity", "Dropout", "StopGradient")
def identity(call: Call) -> list[Result]:
    """Return the input; Dropout may also return its mask."""
    return [Result(call.shape(), call.type(), call.value(0).elements), Result(call.shape(), "bool")]


@rule("Cast", "CastLike")
def cast(call: Call) -> list[Result]:
    """Return the input as another type."""
    kind = call.type(1) if call.op_type == "CastLike" else ELEMENT_TYPES.get(call.int_attribute("to", 1), "float")
    elements = call.value(0).elements
    return [Result(call.shape(), kind, elements and _cast_elements(elements, kind))]


@rule("Reshape")
def reshape(call: Call) -> list[Result]:
    """Return the input's elements in another shape, in which 0 copies a size and -1 is the rest."""
    shape = call.shape()
    wanted = list(call.attribute_or_input("shape", 1) or ())
    if not call.int_attribute("allowzero", 0):
        if len(shape) < len(wanted) and 0 in wanted[len(shape) :]:
            raise MismatchError
        wanted = [shape[index] if size == 0 else size for index, size in enumerate(wanted)]
    return [Result(infer_reshape(shape, wanted), call.type(), call.value(0).elements)]


@rule("Flatten")
def flatten(call: Call) -> list[Result]:
    """Return the input as a matrix."""
    shape = call.shape()
    axis = call.int_attribute("axis", 1)
    # Unlike other operators' axes this one may be the rank itself, so `normalize_axis` does not fit.
    axis = axis + len(shape) if axis < 0 else axis
    return [Result((prod(shape[:axis]), prod(shape[axis:])), call.type(), call.value(0).elements)]


@rule("Squeeze")
def squeeze(call: Call) -> list[Result]:
    """Return the input without axes of size 1."""
    shape = call.shape()
    wanted = call.attribute_or_input("axes", 1)
    if wanted is None:
        axes = {axis for axis, size in enumerate(shape) if size == 1}
    else:
        axes = {normalize_axis(axis, len(shape)) for axis in wanted}
    if any(shape[axis] != 1 for axis in axes):
        raise MismatchError

    sizes = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    return [Result(sizes, call.type(), call.value(0).elements)]


@rule("Unsqueeze")
def unsqueeze(call: Call) -> list[Result]:
    """Return the input with more axes of size 1."""
    wanted = call.attribute_or_input("axes", 1) or ()
    rank = len(call.shape()) + len(wanted)
    axes = {normalize_axis(axis, rank) for axis in wanted}
    if len(axes) != len(wanted):
        raise MismatchError

    rest = iter(call.shape())
    sizes = tuple(1 if axis in axes else next(rest) for axis in range(rank))
    return [Result(sizes, call.type(), call.value(0).elements)]


@rule("Transpose")
def transpose(call: Call) -> list[Result]:
    """Return the input with its axes in another order."""
    shape = call.shape()
    order = call.ints_attribute("perm") or tuple(reversed(range(len(shape))))
    if sorted(order) != list(range(len(shape))):
        raise MismatchError
    elements = call.value(0).elements
    sizes = tuple(shape[axis] for axis in order)
    return [Result(sizes, call.type(), transpose_elements(elements, shape, order) if elements is not None else None)]


@rule("Concat")
def concat(call: Call) -> list[Result]:
    """Return the inputs joined along an axis."""
    shapes = [call.shape(index) for index in range(len(call.inputs))]
    axis = normalize_axis(call.int_attribute("axis", 1), len(shapes[0]))
    # All sizes but that of the axis must agree.
    others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(others) != 1:
        raise MismatchError

    total = sum(shape[axis] for shape in shapes)
    sizes = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])
    parts = [call.value(index).elements for index in range(len(shapes))]
    # Along the first axis the elements of a row-major tensor follow each other.
    known = axis == 0 and is_small(sizes) and all(part is not None for part in parts)
    return [Result(sizes, call.type(), tuple(one for part in parts for one in part or ()) if known else None)]


@rule("Split")
def split(call: Call) -> list[Result]:
    """Return the parts of the input along an axis: of the sizes in ``split``, else of equal size."""
    shape = call.shape()
    axis = normalize_axis(call.int_attribute("axis", 0), len(shape))
    count = call.int_attribute("num_outputs", call.output_count)
    # Equal parts are rounded up, and the last one is smaller (operator set 18).
    part_size = -(-shape[axis] // max(1, count))
    parts = call.attribute_or_input("split", 1) or tuple(
        max(0, min(part_size, shape[axis] - part_size * index)) for index in range(count)
    )
    if sum(parts) != shape[axis] or min(parts) < 0:
        raise MismatchError

    results, start = [], 0
    for part in parts[: call.output_count]:
        # Elements are known where a model splits a shape.
        chosen = range(start, start + part)
        results.append(_selected(call, [chosen if place == axis else range(size) for place, size in enumerate(shape)]))
        start += part
    return results


@rule("Slice")
def slice_(call: Call) -> list[Result]:
    """Return part of the input along some axes."""
    shape = call.shape()
    starts, ends = call.attribute_or_input("starts", 1) or (), call.attribute_or_input("ends", 2) or ()
    axes = call.attribute_or_input("axes", 3) or tuple(range(len(starts)))
    steps = (call.integers(4) if call.has_input(4) else ()) or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise MismatchError

    # A range a axis: the elements are selected only where they are known.
    indices: list[range] = [range(size) for size in shape]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = normalize_axis(axis, len(shape))
        # Backwards, an end before the first entry means all entries: Python writes None for that.
        stop = end if step > 0 or end >= -shape[place] else None
        indices[place] = range(*slice(start, stop, step).indices(shape[place]))
    return [_selected(call, indices)]


@rule("Gather")
def gather(call: Call) -> list[Result]:
    """Return the entries of the first input at the indices of the second."""
    shape, indices = call.shape(), call.shape(1)
    axis = normalize_axis(call.int_attribute("axis", 0), len(shape))
    sizes = (*shape[:axis], *indices, *shape[axis + 1 :])
    # Exporters pick a size from a shape by this operator.
    elements, wanted = call.value(0).elements, call.value(1).elements
    if elements is None or wanted is None or not is_small(sizes):
        return [Result(sizes, call.type())]

    places = [normalize_axis(int(index), shape[axis]) for index in wanted]
    axis_indices = [places if place == axis else range(size) for place, size in enumerate(shape)]
    return [Result(sizes, call.type(), select_elements(elements, shape, axis_indices))]


@rule("GatherElements")
def gather_elements(call: Call) -> list[Result]:
    """Return an entry per index."""
    return [Result(call.shape(1), call.type())]


@rule("GatherND")
def gather_nd(call: Call) -> list[Result]:
    """Return the slice at each tuple of indices."""
    shape, indices = call.shape(), call.shape(1)
    batch = call.int_attribute("batch_dims", 0)
    if not indices or batch + indices[-1] > len(shape):
        raise MismatchError
    return [Result((*indices[:-1], *shape[batch + indices[-1] :]), call.type())]


@rule("Expand")
def expand(call: Call) -> list[Result]:
    """Return the input repeated to a common shape."""
    sizes = broadcast(call.shape(), call.integers(1))
    elements = call.value(0).elements if is_small(sizes) else None
    return [Result(sizes, call.type(), broadcast_elements(elements, call.shape(), sizes) if elements else None)]


@rule("Tile")
def tile(call: Call) -> list[Result]:
    """Return the input repeated along each axis."""
    shape, times = call.shape(), call.integers(1)
    if len(shape) != len(times) or min(times, default=0) < 0:
        raise MismatchError
    sizes = tuple(size * count for size, count in zip(shape, times, strict=True))
    elements = call.value(0).elements
    alone = len(shape) == 1 and is_small(sizes)
    return [Result(sizes, call.type(), elements * times[0] if elements and alone else None)]


@rule("Pad")
def pad(call: Call) -> list[Result]:
    """Return the input with more entries on each side, or, below 0, with fewer."""
    shape = call.shape()
    pads = call.attribute_or_input("pads", 1) or call.ints_attribute("paddings")
    axes = call.integers(3) if call.has_input(3) else tuple(range(len(shape)))
    if len(pads) != 2 * len(axes):
        raise MismatchError

    sizes = list(shape)
    for place, axis in enumerate(axes):
        sizes[normalize_axis(axis, len(shape))] += pads[place] + pads[place + len(axes)]
    return [Result(check_sizes(tuple(sizes)), call.type())]


@rule("TopK")
def top_k(call: Call) -> list[Result]:
    """Return the largest elements, and their indices."""
    shape = call.shape()
    axis = normalize_axis(call.int_attribute("axis", -1), len(shape))
    # k was an attribute until operator set 10.
    count = call.int_attribute("k", 0) if "k" in call.attributes else call.integers(1)[0]
    sizes = (*shape[:axis], min(count, shape[axis]), *shape[axis + 1 :])
    return [Result(sizes, call.type()), Result(sizes, "int64")]


@rule("OneHot")
def one_hot(call: Call) -> list[Result]:
    """Return the input's shape with another axis, of the depth in the second input."""
    shape = call.shape()
    axis = normalize_axis(call.int_attribute("axis", -1), len(shape) + 1)
    return [Result((*shape[:axis], call.integers(1)[0], *shape[axis:]), call.type(2))]


def infer_reshape(shape: Shape, wanted: list[int]) -> Shape:
    """Return *wanted* with its -1 replaced, so that both shapes have the same number of elements."""
    if wanted.count(-1) > 1 or min(wanted, default=0) < -1:
        raise MismatchError

    rest = prod(size for size in wanted if size != -1)
    if -1 in wanted:
        if not rest or prod(shape) % rest:
            raise MismatchError
        wanted[wanted.index(-1)] = prod(shape) // rest
    # A reshape moves no element away.
    if prod(wanted) != prod(shape):
        raise MismatchError
    return tuple(wanted)


def _selected(call: Call, indices: Sequence[Sequence[int]]) -> Result:
    """Return the part of the first input that has these *indices* along each axis."""
    elements, sizes = call.value(0).elements, tuple(len(one) for one in indices)
    chosen = select_elements(elements, call.shape(), indices) if elements is not None else None
    return Result(sizes, call.type(), chosen)


def _cast_elements(elements: tuple[Number, ...], kind: ElementType) -> tuple[Number, ...] | None:
    try:
        if kind == "bool":
            return tuple(bool(number) for number in elements)
        return tuple(map(float, elements)) if kind == "float" else tuple(map(int, elements))
    except (ValueError, OverflowError):  # not a number, or infinite
        return None


@rule("DepthToSpace", "SpaceToDepth")
def depth_and_space(call: Call) -> list[Result]:
    """Return channels as pixels, or pixels as channels."""
    if len(call.shape()) != 4:  # batch, channels, height, width
        raise MismatchError
    batch, channels, height, width = call.shape()
    block = max(1, call.int_attribute("blocksize", 1))
    if call.op_type == "DepthToSpace":
        return [Result((batch, channels // block**2, height * block, width * block), call.type())]
    return [Result((batch, channels * block**2, height // block, width // block), call.type())]


@rule("Resize", "Upsample")
def resize(call: Call) -> list[Result]:
    """Return the image in another size, from sizes or from scales."""
    shape = call.shape()
    last = len(call.inputs) - 1
    axes = call.ints_attribute("axes") or tuple(range(len(shape)))
    sizes = list(shape)
    # Sizes count before scales; exporters leave the other input out, or give it no elements.
    if last == 3 and call.has_input(3) and call.shape(3) != (0,):  # the place of sizes
        wanted: list[Number] = list(call.integers(3))
    else:
        attribute = call.attributes.get("scales")  # an attribute in operator set 7 (Upsample)
        scales = attribute if isinstance(attribute, tuple) else call.elements(min(last, 2))
        wanted = [shape[axis] * scale for axis, scale in zip(axes, scales, strict=False)]
    if len(wanted) != len(axes):
        raise MismatchError

    for axis, size in zip(axes, wanted, strict=True):
        # The scale may be the nearest float below a ratio.
        sizes[normalize_axis(axis, len(shape))] = floor(size + 1e-6)
    return [Result(tuple(sizes), call.type())]


@rule("GridSample")
def grid_sample(call: Call) -> list[Result]:
    """Return a sample per grid point."""
    return [Result((*call.shape()[:2], *call.shape(1)[1:-1]), call.type())]
