"""Operators that move, cut, join and rearrange, on shapes and on the numbers that shapes are computed from."""

from __future__ import annotations

from math import prod

from gpusage.graphs.onnx.shapes.rule import (
    Call,
    MismatchError,
    Result,
    axis_of,
    broadcast,
    few,
    picked,
    rule,
    spread,
    turned,
)
from gpusage.graphs.onnx.tensors import ELEMENT_TYPES, Number
from gpusage_hooks.types import ElementType, Shape


@rule("Identity", "Dropout", "StopGradient")
def identity(call: Call) -> list[Result]:
    """Return the input; Dropout may also return what it kept."""
    same = Result(call.shape(), call.type(), call.value(0).numbers)
    return [same, Result(call.shape(), "bool")]


@rule("Cast", "CastLike")
def cast(call: Call) -> list[Result]:
    """Return the input in another type."""
    kind = call.type(1) if call.op_type == "CastLike" else ELEMENT_TYPES.get(call.whole("to", 1), "float")
    numbers = call.value(0).numbers
    return [Result(call.shape(), kind, numbers and _casted(numbers, kind))]


@rule("Reshape")
def reshape(call: Call) -> list[Result]:
    """Return the input's elements in another shape; 0 copies a size, -1 stands for the rest."""
    shape = call.shape()
    wanted = list(call.given("shape", 1) or ())
    if not call.whole("allowzero", 0):
        if len(shape) < len(wanted) and 0 in wanted[len(shape) :]:
            raise MismatchError
        wanted = [shape[index] if size == 0 else size for index, size in enumerate(wanted)]
    return [Result(filled(shape, wanted), call.type(), call.value(0).numbers)]


@rule("Flatten")
def flatten(call: Call) -> list[Result]:
    """Return the input as a matrix."""
    shape = call.shape()
    axis = call.whole("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return [Result((prod(shape[:axis]), prod(shape[axis:])), call.type(), call.value(0).numbers)]


@rule("Squeeze")
def squeeze(call: Call) -> list[Result]:
    """Return the input without axes of size 1."""
    shape = call.shape()
    given = call.given("axes", 1)
    if given is None:
        axes = {axis for axis, size in enumerate(shape) if size == 1}
    else:
        axes = {axis_of(axis, len(shape)) for axis in given}
    if any(shape[axis] != 1 for axis in axes):
        raise MismatchError
    sizes = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    return [Result(sizes, call.type(), call.value(0).numbers)]


@rule("Unsqueeze")
def unsqueeze(call: Call) -> list[Result]:
    """Return the input with more axes of size 1."""
    given = call.given("axes", 1) or ()
    rank = len(call.shape()) + len(given)
    axes = {axis_of(axis, rank) for axis in given}
    if len(axes) != len(given):
        raise MismatchError
    rest = iter(call.shape())
    sizes = tuple(1 if axis in axes else next(rest) for axis in range(rank))
    return [Result(sizes, call.type(), call.value(0).numbers)]


@rule("Transpose")
def transpose(call: Call) -> list[Result]:
    """Return the input with its axes in another order."""
    shape = call.shape()
    order = call.list("perm") or tuple(reversed(range(len(shape))))
    if sorted(order) != list(range(len(shape))):
        raise MismatchError
    numbers = call.value(0).numbers
    sizes = tuple(shape[axis] for axis in order)
    return [Result(sizes, call.type(), turned(numbers, shape, order) if numbers is not None else None)]


@rule("Concat")
def concat(call: Call) -> list[Result]:
    """Return the inputs one after the other along an axis."""
    shapes = [call.shape(index) for index in range(len(call.inputs))]
    axis = axis_of(call.whole("axis", 1), len(shapes[0]))
    others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(others) != 1:
        raise MismatchError
    total = sum(shape[axis] for shape in shapes)
    sizes = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])
    parts = [call.value(index).numbers for index in range(len(shapes))]
    known = axis == 0 and few(sizes) and all(part is not None for part in parts)
    return [Result(sizes, call.type(), tuple(one for part in parts for one in part or ()) if known else None)]


@rule("Split")
def split(call: Call) -> list[Result]:
    """Return the input cut along an axis into parts of given or equal size."""
    shape = call.shape()
    axis = axis_of(call.whole("axis", 0), len(shape))
    count = call.whole("num_outputs", call.output_count)
    share = -(-shape[axis] // max(1, count))
    parts = call.given("split", 1) or tuple(max(0, min(share, shape[axis] - share * index)) for index in range(count))
    if sum(parts) != shape[axis] or min(parts) < 0:
        raise MismatchError
    results, start = [], 0
    for part in parts[: call.output_count]:
        results.append(_cut(call, axis, range(start, start + part)))
        start += part
    return results


@rule("Slice")
def slice_(call: Call) -> list[Result]:
    """Return part of the input along some axes."""
    shape = call.shape()
    starts, ends = call.given("starts", 1) or (), call.given("ends", 2) or ()
    axes = call.given("axes", 3) or tuple(range(len(starts)))
    steps = (call.wholes(4) if call.has(4) else ()) or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise MismatchError
    chosen: list[range] = [range(size) for size in shape]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = axis_of(axis, len(shape))
        chosen[place] = range(
            *slice(start, end if step > 0 or end >= -shape[place] else None, step).indices(shape[place])
        )
    sizes = tuple(len(one) for one in chosen)
    numbers = call.value(0).numbers
    return [Result(sizes, call.type(), picked(numbers, shape, chosen) if numbers is not None else None)]


@rule("Gather")
def gather(call: Call) -> list[Result]:
    """Return the entries of the first input at the indices of the second."""
    shape, indices = call.shape(), call.shape(1)
    axis = axis_of(call.whole("axis", 0), len(shape))
    sizes = (*shape[:axis], *indices, *shape[axis + 1 :])
    numbers, wanted = call.value(0).numbers, call.value(1).numbers
    if numbers is None or wanted is None or not few(sizes):
        return [Result(sizes, call.type())]
    places = [axis_of(int(index), shape[axis]) for index in wanted]
    chosen = [places if place == axis else range(size) for place, size in enumerate(shape)]
    return [Result(sizes, call.type(), picked(numbers, shape, chosen))]


@rule("GatherElements")
def gather_elements(call: Call) -> list[Result]:
    """Return one entry per index."""
    return [Result(call.shape(1), call.type())]


@rule("GatherND")
def gather_nd(call: Call) -> list[Result]:
    """Return the slices that tuples of indices point at."""
    shape, indices = call.shape(), call.shape(1)
    batch = call.whole("batch_dims", 0)
    if not indices or batch + indices[-1] > len(shape):
        raise MismatchError
    return [Result((*indices[:-1], *shape[batch + indices[-1] :]), call.type())]


@rule("Expand")
def expand(call: Call) -> list[Result]:
    """Return the input repeated to a common shape."""
    sizes = broadcast(call.shape(), call.wholes(1))
    numbers = call.value(0).numbers
    return [Result(sizes, call.type(), spread(numbers, call.shape(), sizes) if numbers and few(sizes) else None)]


@rule("Tile")
def tile(call: Call) -> list[Result]:
    """Return the input repeated along each axis."""
    shape, times = call.shape(), call.wholes(1)
    if len(shape) != len(times) or min(times, default=0) < 0:
        raise MismatchError
    sizes = tuple(size * count for size, count in zip(shape, times, strict=True))
    numbers = call.value(0).numbers
    alone = len(shape) == 1 and few(sizes)
    return [Result(sizes, call.type(), numbers * times[0] if numbers and alone else None)]


@rule("Pad")
def pad(call: Call) -> list[Result]:
    """Return the input with more on each side, or less."""
    shape = call.shape()
    pads = call.given("pads", 1) or call.list("paddings")
    axes = call.wholes(3) if call.has(3) else tuple(range(len(shape)))
    if len(pads) != 2 * len(axes):
        raise MismatchError
    sizes = list(shape)
    for place, axis in enumerate(axes):
        sizes[axis_of(axis, len(shape))] += pads[place] + pads[place + len(axes)]
    if min(sizes, default=0) < 0:
        raise MismatchError
    return [Result(tuple(sizes), call.type())]


@rule("TopK")
def top_k(call: Call) -> list[Result]:
    """Return the largest, and where they stood."""
    shape = call.shape()
    axis = axis_of(call.whole("axis", -1), len(shape))
    count = call.whole("k", 0) if "k" in call.attributes else call.wholes(1)[0]
    sizes = (*shape[:axis], min(count, shape[axis]), *shape[axis + 1 :])
    return [Result(sizes, call.type()), Result(sizes, "int64")]


@rule("OneHot")
def one_hot(call: Call) -> list[Result]:
    """Return an axis more."""
    shape = call.shape()
    axis = axis_of(call.whole("axis", -1), len(shape) + 1)
    return [Result((*shape[:axis], call.wholes(1)[0], *shape[axis:]), call.type(2))]


def filled(shape: Shape, wanted: list[int]) -> Shape:
    """Return *wanted* with its -1 replaced, where it holds as many elements as *shape*."""
    if wanted.count(-1) > 1 or min(wanted, default=0) < -1:
        raise MismatchError
    rest = prod(size for size in wanted if size != -1)
    if -1 in wanted:
        if not rest or prod(shape) % rest:
            raise MismatchError
        wanted[wanted.index(-1)] = prod(shape) // rest
    if prod(wanted) != prod(shape):
        raise MismatchError
    return tuple(wanted)


def _cut(call: Call, axis: int, part: range) -> Result:
    shape = call.shape()
    numbers = call.value(0).numbers
    chosen = [part if place == axis else range(size) for place, size in enumerate(shape)]
    sizes = tuple(len(one) for one in chosen)
    return Result(sizes, call.type(), picked(numbers, shape, chosen) if numbers is not None else None)


def _casted(numbers: tuple[Number, ...], kind: ElementType) -> tuple[Number, ...] | None:
    try:
        if kind == "bool":
            return tuple(bool(number) for number in numbers)
        return tuple(map(float, numbers)) if kind == "float" else tuple(map(int, numbers))
    except (ValueError, OverflowError):  # not a number, or infinite
        return None
