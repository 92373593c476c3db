"""Merges two runs of a model on shapes alone, at two batch sizes, into nodes with sizes that depend on the batch.

A size that is the same in both runs is fixed. One that grows with the batch is a multiple of it, written ``-k`` as in
`Node`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from gpusage.graphs.guard import shown
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node, Shape

Batches = tuple[int, int]
"""The two batch sizes, the smaller one first. Not 1, at which some models take another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """What a model does: at one batch size, or at any once two runs are merged.

    Attributes:
        nodes: In the order in which they run.
        producers: For each node, what makes its inputs: a node, or ``-1 - i`` for the model's input i.
        inputs: The model's inputs, by name.
        results: The nodes that are needed: the model returns what they write, or they write in place.
        unknown: The operators that no rule describes.
    """

    nodes: tuple[Node, ...]
    producers: tuple[tuple[int, ...], ...]
    inputs: tuple[tuple[str, Shape], ...]
    results: tuple[int, ...] = ()
    unknown: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A run at any batch size, and how well its sizes follow the batch.

    Attributes:
        run: Its nodes for any batch size.
        uneven: Operators with sizes that are neither fixed nor a multiple of the batch; these were rounded up.
        squared: Operators with tensors that grow with the square of the batch.
    """

    run: ModelRun
    uneven: Counter[str]
    squared: Counter[str]


def play_twice(play: Callable[[int], ModelRun], batches: Batches) -> Merged | None:
    """Return the runs that *play* gives at *batches* as one, `None` where they differ in more than sizes."""
    first, second = map(play, batches)
    return merge(first, second, batches)


def merge(first: ModelRun, second: ModelRun, batches: Batches) -> Merged | None:
    """Return the runs at *batches* as one, `None` where they differ in more than sizes."""
    if _outline(first) != _outline(second):
        return None
    shared: dict[Node, Node] = {}
    uneven: Counter[str] = Counter()
    squared: Counter[str] = Counter()
    nodes: list[Node] = []
    for one, other in zip(first.nodes, second.nodes, strict=True):
        node = one if one == other else _merged_node(one, other, batches)
        nodes.append(shared.setdefault(node, node))
        if node is not one:
            uneven.update(node.op_type for _ in _uneven(one, other, batches))
            squared.update(node.op_type for shape in _shapes(node) if sum(size < 0 for size in shape) > 1)
    inputs = tuple(
        (name, _merged_shape(one, other, batches))
        for (name, one), (_, other) in zip(first.inputs, second.inputs, strict=True)
    )
    return Merged(run=replace(first, nodes=tuple(nodes), inputs=inputs), uneven=uneven, squared=squared)


def live(run: ModelRun) -> ModelRun:
    """Return only the nodes that the results need; all of them where there are no results."""
    if not run.results:
        return run
    waiting, needed = list(run.results), set[int]()
    while waiting:
        index = waiting.pop()
        if index >= 0 and index not in needed:
            needed.add(index)
            waiting += run.producers[index]
    numbers = {old: new for new, old in enumerate(sorted(needed))}
    return replace(
        run,
        nodes=tuple(run.nodes[old] for old in numbers),
        producers=tuple(tuple(numbers.get(producer, producer) for producer in run.producers[old]) for old in numbers),
        results=tuple(numbers[old] for old in run.results),
    )


def graph_of(
    run: ModelRun,
    *,
    name: str,
    source: str,
    parameter_count: int,
    fixed_batch_size: int | None = None,
    notes: Iterable[str] = (),
) -> ModelGraph:
    """Return *run* as a graph.

    Raises:
        GraphError: Nothing ran.
    """
    if not run.nodes:
        message = f"Model {shown(source)} must have at least one operation on its inputs; got none. Check the model."
        raise GraphError(message)
    return ModelGraph(
        name=name,
        source=source,
        nodes=run.nodes,
        producers=run.producers,
        inputs=run.inputs,
        parameter_count=parameter_count,
        fixed_batch_size=fixed_batch_size,
        unknown_op_types=tuple(sorted(run.unknown.items())),
        notes=tuple(notes),
    )


def _outline(run: ModelRun) -> object:
    """Return all of *run* that must not depend on the batch."""
    ranks = [(tuple(map(len, node.inputs)), tuple(map(len, node.outputs))) for node in run.nodes]
    return (
        run.producers,
        [node.op_type for node in run.nodes],
        ranks,
        [(name, len(shape)) for name, shape in run.inputs],
    )


def _merged_node(one: Node, other: Node, batches: Batches) -> Node:
    return replace(
        one,
        inputs=tuple(_merged_shape(*pair, batches) for pair in zip(one.inputs, other.inputs, strict=True)),
        outputs=tuple(_merged_shape(*pair, batches) for pair in zip(one.outputs, other.outputs, strict=True)),
        attributes=tuple(pair for pair in one.attributes if pair in other.attributes),
    )


def _merged_shape(one: Shape, other: Shape, batches: Batches) -> Shape:
    if one == other:
        return one
    small, large = batches
    return tuple(
        size if size == twin else -max(-(-size // small), -(-twin // large))
        for size, twin in zip(one, other, strict=True)
    )


def _uneven(one: Node, other: Node, batches: Batches) -> Iterator[int]:
    """Yield each size of *one* that is neither *other*'s nor a multiple of the batch."""
    small, large = batches
    for size, twin in zip(chain(*_shapes(one)), chain(*_shapes(other)), strict=True):
        if size != twin and (size % small or size // small * large != twin):
            yield size


def _shapes(node: Node) -> tuple[Shape, ...]:
    return (*node.inputs, *node.outputs)
