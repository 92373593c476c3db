"""A model's run at two batch sizes, merged into nodes whose sizes depend on the batch.

A size that is the same in both runs is fixed. One that grows with the batch is a multiple of it, written ``-k`` as in
`Node`. A graph network has no batch: its inputs list edges.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpusage.graphs.model_files import quoted
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node, Shape

Batches = tuple[int, int]
"""Two batch sizes, the smaller one first. Not 1: at 1 some models skip operators, such as a squeeze or a loop."""

# A whole word, as in ``edge_index``, ``edgeIndex``, ``adj_t``: in ``knowledge_ids``, two rows are a batch of two.
_EDGE_NAME = re.compile(r"(?i)(?:^|[^a-z])(?:edges?|adj|adjacency)(?:$|[^a-z]|ind|idx|list|attr)")
# Pairs of inputs in DGL, e3nn and Jraph. Not ``row`` and ``col``, which may be a batch of pairs.
_ENDPOINT_NAMES = (("src", "dst"), ("edge_src", "edge_dst"), ("senders", "receivers"))
# Of an edge: its source and its target node.
_ENDPOINTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """The operators that a model runs, at one batch size or, once two runs are merged, at any.

    Attributes:
        nodes: In the order in which they run.
        producers: For each node, the producers of its inputs: a node, or ``-1 - i`` for the model's input i.
        inputs: The model's inputs, by name.
        results: The nodes whose outputs the model returns, or that write in place. Empty: all nodes count.
        unknown: How often each operator ran that no rule describes.
    """

    nodes: tuple[Node, ...]
    producers: tuple[tuple[int, ...], ...]
    inputs: tuple[tuple[str, Shape], ...]
    results: tuple[int, ...] = ()
    unknown: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRun:
    """A run at any batch size, and where its sizes do not follow the batch.

    Attributes:
        run: Its nodes for any batch size.
        uneven: How many sizes of each operator are neither fixed nor a multiple of the batch; they were rounded up.
        squared: How many tensors of each operator grow with the square of the batch.
    """

    run: ModelRun
    uneven: Counter[str]
    squared: Counter[str]


def merge_runs(first: ModelRun, second: ModelRun, batches: Batches) -> MergedRun | None:
    """Return the runs at *batches* as one, ``None`` if they differ in more than sizes."""
    if first.producers != second.producers or len(first.inputs) != len(second.inputs):
        return None

    unique: dict[Node, Node] = {}
    uneven: Counter[str] = Counter()
    squared: Counter[str] = Counter()
    nodes: list[Node] = []
    for small, large in zip(first.nodes, second.nodes, strict=True):
        node = small if small == large else _merged_node(small, large, batches)
        if node is None:
            return None
        nodes.append(unique.setdefault(node, node))  # equal nodes are one object, which predictors compute once
        if node is not small:
            uneven_count, squared_count = _irregular_sizes(node, small, large, batches)
            uneven += Counter({node.op_type: uneven_count})  # a sum of counters drops what is 0
            squared += Counter({node.op_type: squared_count})

    inputs = []
    for (name, small_shape), (other_name, large_shape) in zip(first.inputs, second.inputs, strict=True):
        if name != other_name or len(small_shape) != len(large_shape):
            return None
        inputs.append((name, _merged_shape(small_shape, large_shape, batches)))
    return MergedRun(run=replace(first, nodes=tuple(nodes), inputs=tuple(inputs)), uneven=uneven, squared=squared)


def _merged_node(small: Node, large: Node, batches: Batches) -> Node | None:
    """Return the node of any batch size; ``None`` if the two are different operators, or have different ranks."""
    if small.op_type != large.op_type:
        return None

    merged: list[tuple[Shape, ...]] = []
    for shapes, others in ((small.inputs, large.inputs), (small.outputs, large.outputs)):
        if [*map(len, shapes)] != [*map(len, others)]:
            return None
        merged.append(tuple(_merged_shape(*pair, batches) for pair in zip(shapes, others, strict=True)))
    inputs, outputs = merged
    # An attribute that follows the batch, such as a shape to expand to, changes no cost.
    attributes = tuple(pair for pair in small.attributes if pair in large.attributes)
    return replace(small, inputs=inputs, outputs=outputs, attributes=attributes)


def _merged_shape(small: Shape, large: Shape, batches: Batches) -> Shape:
    """Return each size that differs as a multiple of the batch, written ``-k`` and rounded up."""
    if small == large:
        return small
    first, second = batches
    return tuple(
        size if size == other else -max(-(-size // first), -(-other // second))
        for size, other in zip(small, large, strict=True)
    )


def _irregular_sizes(merged: Node, small: Node, large: Node, batches: Batches) -> tuple[int, int]:
    """Return how many sizes are neither fixed nor a multiple of the batch, and how many tensors grow by its square."""
    first, second = batches
    uneven = squared = 0
    for shape, small_shape, large_shape in zip(
        (*merged.inputs, *merged.outputs), (*small.inputs, *small.outputs), (*large.inputs, *large.outputs), strict=True
    ):
        for size, other in zip(small_shape, large_shape, strict=True):
            uneven += size != other and (size % first != 0 or size // first * second != other)
        squared += sum(size < 0 for size in shape) > 1

    return uneven, squared


def scale_one_batch(run: ModelRun, batch_size: int) -> ModelRun | None:
    """Return a run at one *batch_size* for any, ``None`` where a tensor's first size is not the batch.

    Tensors that depend on no input, such as masks, keep their sizes.
    """
    of_input: list[bool] = []
    nodes: list[Node] = []
    for node, producers in zip(run.nodes, run.producers, strict=True):
        follows = [producer < 0 or of_input[producer] for producer in producers]
        of_input.append(any(follows))
        if of_input[-1]:
            read = [shape for shape, scaled in zip(node.inputs, follows, strict=True) if scaled]
            # One tensor whose first size is something else: to scale it would be a guess.
            if any(shape[:1] != (batch_size,) for shape in (*read, *node.outputs)):
                return None
            inputs = (_free(shape) if scaled else shape for shape, scaled in zip(node.inputs, follows, strict=True))
            outputs = tuple(map(_free, node.outputs))
            node = replace(node, inputs=tuple(inputs), outputs=outputs)  # noqa: PLW2901 - the same node, of any batch
        nodes.append(node)
    if any(shape[:1] != (batch_size,) for _, shape in run.inputs):
        return None

    return replace(run, nodes=tuple(nodes), inputs=tuple((name, _free(shape)) for name, shape in run.inputs))


def _free(shape: Shape) -> Shape:
    return (-1, *shape[1:])


def without_dead_nodes(run: ModelRun) -> ModelRun:
    """Return *run* with only the nodes that its results need, with all of them if it has no results."""
    if not run.results:
        return run

    # Depth first from the results, without recursion: a chain of nodes may be longer than the stack.
    pending, needed = list(run.results), set[int]()
    while pending:
        index = pending.pop()
        if index >= 0 and index not in needed:
            needed.add(index)
            pending += run.producers[index]

    sources = sorted(needed)
    numbers = dict(zip(sources, range(len(sources)), strict=True))
    nodes, producers = [], []
    for old in sources:
        nodes.append(run.nodes[old])
        producers.append(tuple([numbers.get(producer, producer) for producer in run.producers[old]]))
    results = tuple(map(numbers.__getitem__, run.results))
    return replace(run, nodes=tuple(nodes), producers=tuple(producers), results=results)


def to_graph(
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
        GraphError: The run has no nodes.
    """
    if not run.nodes:
        message = f"Model {quoted(source)} must have at least one operation on its inputs; got none. Check the model."
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


def is_edge_list(name: str, sizes: Sequence[object], *, is_integer: bool) -> bool:
    """Return whether an input of this name, these sizes and this kind of numbers lists the edges of a graph."""
    return is_integer and len(sizes) == _ENDPOINTS and sizes[0] == _ENDPOINTS and _EDGE_NAME.search(name) is not None


def edge_list_inputs(inputs: Iterable[tuple[str, Sequence[object], bool]]) -> str:
    """Return the names of the *inputs* that list edges, ``""`` if none does.

    Args:
        inputs: The name and the sizes of each, and whether it holds integers.
    """
    # Edges may come as two vectors: where each one starts, and where it ends.
    vectors = set()
    for name, sizes, is_integer in inputs:
        if is_edge_list(name, sizes, is_integer=is_integer):
            return name
        if is_integer and len(sizes) == 1:
            vectors.add(name)
    return next((f"{start} and {end}" for start, end in _ENDPOINT_NAMES if {start, end} <= vectors), "")


def scaled_note(batch_size: int) -> str:
    """Return the note on a file for one *batch_size* whose sizes can be scaled."""
    return f"The file was exported for batch size {batch_size}; every size in it still follows the batch."


def edges_note(names: str) -> str:
    """Return the note on a model that reads a graph."""
    return f"The model reads a graph, with its edges in {names}: a step is of one such graph, batch 1."
