"""Training by a pipeline of GPUs: each stage has some of the layers of one copy of a model.

In the order 1F1B, a stage waits for p - 1 of m micro-batches while the pipeline fills and drains, and the first stage
keeps the activations of p micro-batches. The last stage, which makes the model's output as well, takes longest. Memory
is that of the first or of the last stage, whichever has more. **Interleaved**, a stage has v pieces, between which the
layers of all others lie: it waits a v-th of that, and sends v times as much. With m < p it waits longer: for
p - m + (m - 1) / v. All stages keep more: p + (p - 1) / v micro-batches in the first, p - (p - 1) / v in the last.

Nothing here was fitted.

Source:
    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", arXiv
    2104.04473, sections 2.2 and 2.3.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import NamedTuple, NoReturn

import numpy as np

from gpusage.predictors.arrays import IntArray
from gpusage.predictors.parallel.even_parts import require_a_layer_for_each
from gpusage.predictors.work.checkpoints import Checkpoints, checkpoints_of
from gpusage.predictors.work.lowering import Lowering
from gpusage.predictors.work.sequences import find_attentions
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Shape, Workload


class Stage(NamedTuple):
    """A stage of a pipeline: its part of the model, and the layers of which checkpoints are kept."""

    graph: ModelGraph
    blocks: Checkpoints


def micro_batches_in_flight(workload: Workload) -> tuple[float, float]:
    """Return how many micro-batches' activations the first stage keeps, and how many of its layers the last stage."""
    stages, pieces = workload.pipeline, workload.virtual_pipeline
    more = (stages - 1) / pieces
    first, last = (stages + more, stages - more) if pieces > 1 else (float(stages), 1.0)
    return min(first, workload.accumulate), min(last, workload.accumulate)


def stages_of(graph: ModelGraph, lowering: Lowering, count: int, pieces: int = 1) -> tuple[Stage, Stage]:
    """Return the first and the last of *count* stages; no stage has more layers than they.

    Args:
        graph: The whole model.
        lowering: Of *graph*.
        count: At least 2.
        pieces: Of each stage, each of as many layers while there are any.

    Raises:
        GraphError: There are fewer layers than stages, or layers of several kinds.
    """
    edges = _layer_edges(graph, lowering)
    layers = len(edges) - 1
    require_a_layer_for_each(graph, layers, count, key="pipeline")
    if layers < count * pieces:
        is_cured = layers >= 2 * count
        cure = f"Write 'virtual_pipeline={layers // count}' or less" if is_cured else "Remove 'virtual_pipeline'"
        message = (
            f"Model {graph.name!r} must have a layer for each piece of its {count} stages; got {layers} layers, "
            f"virtual_pipeline={pieces}. {cure}."
        )
        raise GraphError(message)

    # Layers of the first stage, and of the last: a piece has the same number of them, the last pieces less, or none.
    of_piece = -(-layers // (count * pieces))
    rounds, left = divmod(layers, count * of_piece)
    each = rounds * of_piece + min(left, of_piece)

    # Checkpoints of a stage are at its layers, whatever blocks the whole model has.
    nodes = np.arange(len(graph.nodes))
    layer = np.searchsorted(edges, nodes, side="right") - 1
    inside = (nodes >= edges[0]) & (nodes < edges[-1])
    blocks = Checkpoints(
        start=np.where(inside, edges[np.minimum(layer, len(edges) - 1)], nodes),
        recomputed_nodes=inside,
        has_blocks=True,
    )

    first, last = slice(0, int(edges[each])), slice(int(edges[-1 - each]), len(nodes))
    return _stage(graph, blocks, first), _stage(graph, blocks, last)


def _layer_edges(graph: ModelGraph, lowering: Lowering) -> IntArray:
    """Return where each layer starts, and where the last one ends.

    Checkpoints may start in the middle of a layer, where as little is kept; here the last layer ends where the model
    ceases to repeat. The first layer is often unlike the others, as what is computed once for all stands in it.
    """
    attentions = np.array([one.scores for one in find_attentions(graph)], dtype=np.int64)
    # layers with an attention are no accident, however much the other parts of the model write
    blocks = checkpoints_of(lowering, least_share=0.0) if len(attentions) else checkpoints_of(lowering)
    kinds = lowering.structure.kind_of_node
    inside = blocks.recomputed_nodes.nonzero()[0]
    starts = np.unique(blocks.start[inside]) if blocks.has_blocks else inside[:0]
    if not len(starts):
        _refuse_layers(graph, "none that gpusage recognizes")

    # Blocks may end in the middle of a layer: how far behind them nodes still repeat is where each layer ends.
    end = int(inside[-1]) + 1
    length = (end - int(starts[0])) // len(starts)
    repeats = kinds[end:] == kinds[end - length : len(kinds) - length]
    more = int(np.argmin(np.append(repeats, False)))
    edges = np.append(starts, end) + more

    # What stands before the first edge with as many attentions as a layer is one more layer, unlike the others.
    before, of_one = (int(np.count_nonzero(one)) for one in (attentions < edges[0], attentions < edges[1]))
    unlike = before // max(of_one - before, 1)
    if unlike > 1 or np.count_nonzero(attentions >= edges[-1]):
        _refuse_layers(graph, "layers of several kinds")
    return np.append(np.maximum(edges[0] - length, 0), edges) if unlike else edges


def _refuse_layers(graph: ModelGraph, others: str) -> NoReturn:
    message = f"Model {graph.name!r} must have one row of equal layers for 'pipeline'; got {others}. Remove 'pipeline'."
    raise GraphError(message)


def _stage(graph: ModelGraph, blocks: Checkpoints, part: slice) -> Stage:
    """Return the nodes of *part*; what earlier nodes give is an input, the newest the last."""
    start, nodes, producers = part.start, graph.nodes[part], graph.producers[part]

    # What earlier nodes write becomes an input of this part, by the number of the node that writes it.
    inputs: dict[int, tuple[str, Shape]] = {}
    for node, sources in zip(nodes, producers, strict=True):
        for source, shape in zip(sources, node.inputs, strict=True):
            if source < start:
                inputs[source] = graph.inputs[-1 - source] if source < 0 else (f"stage_{source}", shape)
    inputs = dict(sorted(inputs.items()))

    places = {source: -1 - place for place, source in enumerate(inputs)}
    counted = sum(prod(shape) for node in nodes for shape in node.parameters)
    own = replace(
        graph,
        nodes=nodes,
        producers=tuple(tuple(places.get(source, source - start) for source in sources) for sources in producers),
        inputs=tuple(inputs.values()),
        parameter_count=min(counted, graph.parameter_count),
    )
    inside = replace(blocks, start=blocks.start[part] - start, recomputed_nodes=blocks.recomputed_nodes[part])
    return Stage(own, inside)


def idle_micro_batches(workload: Workload) -> float:
    """Return for how many micro-batches a stage could have computed while the pipeline fills and drains.

    With fewer micro-batches than stages, a stage also waits for the next of its pieces: each micro-batch goes through
    all stages before.
    """
    at_once = min(workload.pipeline, workload.accumulate)
    return workload.pipeline - at_once + (at_once - 1) / workload.virtual_pipeline
