"""Operators that give a picture another size."""

from __future__ import annotations

from math import floor

from gpusage.graphs.onnx.shapes.rule import Call, MismatchError, Result, axis_of, rule
from gpusage.graphs.onnx.tensors import Number
from gpusage_hooks.types import Shape


@rule("DepthToSpace")
def depth_to_space(call: Call) -> list[Result]:
    """Return channels as pixels."""
    batch, channels, height, width = _four(call)
    block = max(1, call.whole("blocksize", 1))
    return [Result((batch, channels // block**2, height * block, width * block), call.type())]


@rule("SpaceToDepth")
def space_to_depth(call: Call) -> list[Result]:
    """Return pixels as channels."""
    batch, channels, height, width = _four(call)
    block = max(1, call.whole("blocksize", 1))
    return [Result((batch, channels * block**2, height // block, width // block), call.type())]


@rule("Resize", "Upsample")
def resize(call: Call) -> list[Result]:
    """Return the picture in another size, given outright or by scales."""
    shape = call.shape()
    last = len(call.inputs) - 1
    axes = call.list("axes") or tuple(range(len(shape)))
    sizes = list(shape)
    if last == 3 and call.has(3) and call.shape(3) != (0,):  # noqa: PLR2004 - the place of sizes
        wanted: list[Number] = list(call.wholes(3))
    else:
        held = call.attributes.get("scales")  # as operator set 7 has it
        scales = held if isinstance(held, tuple) else call.numbers(min(last, 2))
        wanted = [shape[axis] * scale for axis, scale in zip(axes, scales, strict=False)]
    if len(wanted) != len(axes):
        raise MismatchError
    for axis, size in zip(axes, wanted, strict=True):
        sizes[axis_of(axis, len(shape))] = floor(size + 1e-6)  # the scale may be the nearest real below a ratio
    return [Result(tuple(sizes), call.type())]


@rule("GridSample")
def grid_sample(call: Call) -> list[Result]:
    """Return one sample a grid point."""
    return [Result((*call.shape()[:2], *call.shape(1)[1:-1]), call.type())]


def _four(call: Call) -> Shape:
    if len(call.shape()) != 4:  # noqa: PLR2004 - batch, channels, height, width
        raise MismatchError
    return call.shape()
