"""In which order tensors lie in memory, where a transposed view does not end at the next operator.

An image that was made of convolutions and is read as a sequence of vectors has its channels apart: PyTorch only changes
the strides, and every sum takes the order of its first summand. So a model may carry the transposed order through all
of its blocks: each normalization copies it, and each sum with what a product wrote reads one of both strided. The other
way round, an image that a layer normalization wrote has its channels side by side, and so has all that convolutions
make of it, which cuDNN need not transpose before and after its work.

An order is a tuple of a tensor's sizes by their place, the outermost first: ``(0, 2, 3, 1)`` is channels last. A
tensor in plain order is in no table.

Source:
    PyTorch's TensorIterator (the first operand decides on the order), ``layer_norm`` (``expect_contiguous``),
    ``linear`` (one product with its bias for contiguous inputs alone), and ``cudnn_conv_suggest_memory_format``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from gpusage.predictors.work.operators import OperatorClass, class_of
from gpusage_hooks.types import ModelGraph, Node, Shape

Order = tuple[int, ...]
CHANNELS_LAST: Order = (0, 2, 3, 1)
# Of sequences of vectors: batch, length and width.
_SEQUENCES_RANK = 3
# Of images: batch, channels, height and width.
_IMAGE_RANK = 4
# Of tensors and operators that are looked at; no model has more, a forged card's nodes may write thousands.
_MOST_RANK, _MOST_OUTPUTS = 8, 5
_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_KEEPING_IMAGES = (OperatorClass.CONVOLUTION, OperatorClass.BATCH_NORMALIZATION, OperatorClass.REDUCTION)
_PASSING_IMAGES = ("Resize", "Pad", "Concat")
_PASSING = ("Slice", "Split", "Identity")


class Layouts(NamedTuple):
    """Nodes whose operands do not lie as usual.

    Attributes:
        non_contiguous: Those that copy an operand first, or read it across: it lies in another order than they need.
        channels_last: Convolutions of images whose channels lie side by side.
    """

    non_contiguous: frozenset[int]
    channels_last: frozenset[int]


PLAIN_LAYOUTS = Layouts(non_contiguous=frozenset(), channels_last=frozenset())


def layouts_of(graph: ModelGraph) -> Layouts:
    """Return the nodes of *graph* whose operands do not lie as usual."""
    orders: dict[int, Order] = {}
    non_contiguous, channels_last = set[int](), set[int]()
    for index, (node, makers) in enumerate(zip(graph.nodes, graph.producers, strict=True)):
        if node.op_type != "Transpose" and orders.keys().isdisjoint(makers):
            continue  # it reads and writes in plain order, as nearly all nodes do

        order = _order(node, makers, orders)
        if order and order != tuple(range(len(order))):
            orders[index] = order
        if _is_non_contiguous_read(node, makers, orders):
            non_contiguous.add(index)
        elif order == CHANNELS_LAST and class_of(node) == OperatorClass.CONVOLUTION:
            channels_last.add(index)
    return Layouts(non_contiguous=frozenset(non_contiguous), channels_last=frozenset(channels_last))


def _order(node: Node, makers: tuple[int, ...], orders: Mapping[int, Order]) -> Order:
    """Return the order of what a node writes; none where it is the plain one."""
    if not node.inputs or not node.outputs:
        return ()
    source, output = node.inputs[0], node.outputs[0]
    if max(len(source), len(output)) > _MOST_RANK:
        return ()

    order = _of_input(node, makers, orders, 0)
    if node.op_type == "Transpose":
        return _transposed(order, source, output)
    if node.op_type in _RESHAPES:
        order = _reshaped(order, source, output)
        # Where only sizes of 1 stand elsewhere, the order is plain.
        large = [place for place in order if output[place] != 1]
        return tuple(range(len(order))) if large == sorted(large) else order
    if class_of(node) == OperatorClass.ELEMENTWISE:
        whole = [place for place, shape in enumerate(node.inputs) if shape == output]
        return _of_input(node, makers, orders, whole[0]) if whole else ()
    if node.op_type in _PASSING:
        return order if len(source) == len(output) else ()

    # Convolutions and the like write images as they read them, where all of these have their channels side by side.
    saves = class_of(node) in _KEEPING_IMAGES or node.op_type in _PASSING_IMAGES
    is_image = saves and all(len(shape) == _IMAGE_RANK for shape in (*node.inputs, *node.outputs[:_MOST_OUTPUTS]))
    is_last = is_image and all(orders.get(maker) == CHANNELS_LAST for maker in makers)
    return CHANNELS_LAST if is_last else ()


def _is_non_contiguous_read(node: Node, makers: tuple[int, ...], orders: Mapping[int, Order]) -> bool:
    """Return whether a node has to copy an operand, or to read one in another order than it writes."""
    own = class_of(node)
    if own == OperatorClass.ELEMENTWISE:
        written = node.outputs[:_MOST_OUTPUTS]
        whole = {orders.get(maker) for maker, shape in zip(makers, node.inputs, strict=False) if shape in written}
        return len(whole) > 1
    is_product = own == OperatorClass.PRODUCT and bool(node.parameters) and len(node.inputs[0]) == _SEQUENCES_RANK
    return (is_product or own == OperatorClass.NORMALIZATION) and makers[0] in orders


def _of_input(node: Node, makers: tuple[int, ...], orders: Mapping[int, Order], place: int) -> Order:
    """Return the order of an input, the plain one included; a forged card's may be of other sizes than its maker's."""
    plain = tuple(range(len(node.inputs[place])))
    order = orders.get(makers[place], plain) if place < len(makers) else plain
    return order if len(order) == len(plain) else plain


@lru_cache(maxsize=1024)
def _transposed(order: Order, source: Shape, output: Shape) -> Order:
    """Return the order behind a transpose: of equal sizes the first is taken first, for no card has more."""
    if len(output) != len(source):
        return ()

    free: dict[int, list[int]] = {}
    for place in reversed(range(len(source))):
        free.setdefault(source[place], []).append(place)
    ends = [0] * len(source)
    for end, size in enumerate(output):
        if not free.get(size):
            return ()
        ends[free[size].pop()] = end
    return tuple(ends[place] for place in order)


@lru_cache(maxsize=1024)
def _reshaped(order: Order, source: Shape, output: Shape) -> Order:
    """Return the order of a view of other sizes; none where there is no such view, so that a reshape copies."""
    runs = _runs(source, output)

    # Sizes that become one must lie next to each other in memory, in order, or the reshape copies.
    depths = {place: depth for depth, place in enumerate(order)}
    starts: list[tuple[int, list[int]]] = []
    for before, after in runs:
        places = [depths[place] for place in before]
        if places != list(range(places[0], places[0] + len(places))):
            return ()
        starts.append((places[0], after))
    return tuple(place for _, after in sorted(starts) for place in after) if runs else ()


def _runs(source: Shape, output: Shape) -> list[tuple[list[int], list[int]]]:
    """Return which sizes of *source* become which of *output*, in runs of equal products; none where they do not."""
    runs: list[tuple[list[int], list[int]]] = []
    first = second = 0

    # Both shapes have as many elements: take sizes from the smaller side until the products are equal.
    while first < len(source) and second < len(output):
        before, after, left, right = [first], [second], source[first], output[second]
        first, second = first + 1, second + 1
        while left != right:
            if abs(left) < abs(right) and first < len(source):
                left, first = left * source[first], first + 1
                before.append(first - 1)
            elif second < len(output):
                right, second = right * output[second], second + 1
                after.append(second - 1)
            else:
                return []
        runs.append((before, after))
    return runs if first == len(source) and second == len(output) else []
