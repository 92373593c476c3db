"""Training where several GPUs hold one copy of a model: each layer divided, the layers divided, or both.

**Tensor parallelism.** Of two linear layers that follow one another, a GPU has some columns of the first and the same
rows of the second, and some heads of each attention. What the second gives is summed over all GPUs forward, and so is
the gradient of what the first reads backward: two sums each way in a layer of a transformer. Each GPU does whole what
stands between (norms, dropouts, sums with what went before). With **sequence parallelism** it does so for its part of
the tokens: a sum becomes a reduce-scatter before and an all-gather behind, which send as much. Megatron's backward pass
gathers the input of the first layer once more, behind the product with the weights, so nobody waits for that. Megatron
does so if asked (``--sequence-parallel``; NeMo's recipes ask), PyTorch's own tensor parallelism always (torchtitan).

**Pipeline parallelism.** A stage has some of the layers. In the order 1F1B, a stage waits for p - 1 of m micro-batches
while the pipeline fills and drains, and the first stage keeps the activations of p micro-batches. The last stage, which
makes the model's output as well, takes longest. Memory is that of the first or of the last stage, whichever has more.
**Interleaved**, a stage has v pieces, between which the layers of all others lie: it waits a v-th of that, and sends v
times as much. With m < p it waits longer: for p - m + (m - 1) / v. All stages keep more: p + (p - 1) / v micro-batches
in the first, p - (p - 1) / v in the last.

Nothing here was fitted.

Source:
    Shoeybi et al., arXiv 1909.08053, section 3; Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
    Clusters Using Megatron-LM", arXiv 2104.04473, sections 2.2 and 2.3; Korthikanti et al., "Reducing Activation
    Recomputation in Large Transformer Models", arXiv 2205.05198, sections 4.2.2 and 4.2.3. Megatron Core's user guide,
    "Distributed Optimizer": 6 + 12 / d bytes for each weight in bf16, 4 + 16 / d in fp16, and the gradients are summed
    in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple, NoReturn

import numpy as np

from gpusage.devices.precisions import FLOAT_BYTES
from gpusage.predictors.arrays import IntArray
from gpusage.predictors.parallel.context_parallel import RingTraffic, ring_traffic
from gpusage.predictors.parallel.data_parallel import FULLY_SHARDED
from gpusage.predictors.parallel.divisions import require_a_layer_for_each, require_even_parts
from gpusage.predictors.parallel.expert_parallel import ExpertTraffic, expert_traffic
from gpusage.predictors.parallel.links import allreduce_s_per_byte, exchange_s_per_byte, send_s_per_byte
from gpusage.predictors.parallel.tensor_parallel import EXCHANGE_S
from gpusage.predictors.work.checkpoints import Checkpoints, checkpoints_of
from gpusage.predictors.work.lowering import Lowering, split_kinds
from gpusage.predictors.work.operators import OperatorClass, element_count
from gpusage.predictors.work.sequences import Attention, find_attentions, key_count
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Gpu, ModelGraph, Shape, Workload
from gpusage_hooks.units import seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedLayers:
    """What one of the GPUs does that divide each layer.

    Attributes:
        lowering: Its part.
        sum_count: Sums over the GPUs in a forward pass.
        sum_bytes: Of all of them.
    """

    lowering: Lowering
    sum_count: float = 0.0
    sum_bytes: float = 0.0


def divided_layers(lowering: Lowering, graph: ModelGraph, workload: Workload) -> DividedLayers:
    """Return what each GPU does of *lowering*, which is of *graph*.

    Raises:
        GraphError: The heads cannot be divided evenly, or the model has experts.
    """
    if workload.tensor == 1:
        return DividedLayers(lowering=lowering)
    _require_divisible(graph, workload.tensor)
    part = 1.0 / workload.tensor
    has_weight = np.array([bool(kind.parameters) for kind in lowering.structure.kinds], dtype=bool)
    is_linear = (lowering.operator_class == OperatorClass.PRODUCT) & has_weight
    whole, labels = split_kinds(lowering, _divided_ends(graph, is_linear[lowering.structure.kind_of_node].tolist()))
    reads, writes = labels >= _READS, labels % _READS == _WRITES
    is_product = (whole.operator_class == OperatorClass.PRODUCT) & (reads != writes)
    sums = is_product & reads
    is_sequence_parallel = workload.sequence_parallel or workload.strategy in FULLY_SHARDED
    by_tokens = is_sequence_parallel & ~is_product
    read, written = (np.where(is_divided | by_tokens, part, 1.0) for is_divided in (reads, writes))
    stored = np.where(sums & is_sequence_parallel, part, written)
    counts = whole.structure.counts * sums
    last = whole.structure.kind_of_node[whole.structure.output_nodes[-1:]]
    return DividedLayers(
        lowering=replace(
            whole,
            flop=whole.flop * np.where(is_product, part, written),
            read_bytes=whole.read_bytes * read,
            parameter_bytes=whole.parameter_bytes * np.where(is_product, part, 1.0),
            written_bytes=whole.written_bytes * written,
            output_elements=np.maximum(whole.output_elements * written, 1.0),
            output_bytes=whole.output_bytes * stored,
            saved_bytes=whole.saved_bytes * stored,
            inner=np.maximum(whole.inner * np.where(sums, part, 1.0), 1.0),
            width=np.maximum(whole.width * np.where(is_product & writes, part, 1.0), 1.0),
            cast_elements=whole.cast_elements * read,
            reorder_bytes=whole.reorder_bytes * read,
            parameter_count=-(-whole.parameter_count // workload.tensor),
            output_elements_of_model=whole.output_elements_of_model * float(written[last].prod()),
        ),
        sum_count=float(counts.sum()),
        sum_bytes=float(FLOAT_BYTES[workload.precision] * whole.output_elements @ counts),
    )


_READS, _WRITES = 2, 1
"""Whether a node reads, and whether it writes, what is divided: a label is the sum of both."""


def _divided_ends(graph: ModelGraph, is_linear: list[bool]) -> IntArray:
    """Return a label for each node: a linear layer divides what it writes, and the next one sums it.

    What reaches the scores of an attention is divided by heads, so a linear layer that stands alone before a block (of
    OPT's small models, ALBERT, wav2vec 2) is whole.
    """
    scores, whole = sorted(one.scores for one in find_attentions(graph)), set[int]()
    while True:
        labels = _labels(graph, is_linear, whole)
        undivided = (one for one in scores if not _reads_divided(graph, labels, one))
        alone = next((added for one in undivided if (added := _divided_before(graph, is_linear, labels, one))), None)
        if alone is None:
            return np.array(labels, dtype=np.int64)
        whole |= alone


def _labels(graph: ModelGraph, is_linear: list[bool], whole: set[int]) -> list[int]:
    labels = [0] * len(graph.nodes)
    for index in range(len(graph.nodes)):
        reads = _reads_divided(graph, labels, index)
        writes = (not reads and index not in whole) if is_linear[index] else reads
        labels[index] = _READS * reads + _WRITES * writes
    return labels


def _reads_divided(graph: ModelGraph, labels: list[int], node: int) -> bool:
    return any(labels[source] % _READS for source in graph.producers[node] if source >= 0)


def _divided_before(graph: ModelGraph, is_linear: list[bool], labels: list[int], scores: int) -> set[int]:
    """Return the linear layers that divide what those read that stand right before *scores*."""
    last = _linear_before(graph, is_linear, {scores})
    return {one for one in _linear_before(graph, is_linear, last) if labels[one] == _WRITES}


def _linear_before(graph: ModelGraph, is_linear: list[bool], nodes: set[int]) -> set[int]:
    """Return the nearest linear layers on the ways that lead to *nodes*."""
    nearest, seen, ways = set[int](), set[int](), [source for node in nodes for source in graph.producers[node]]
    while ways:
        node = ways.pop()
        if node < 0 or node in seen:
            continue
        seen.add(node)
        if is_linear[node]:
            nearest.add(node)
        else:
            ways += graph.producers[node]
    return nearest


def _require_divisible(graph: ModelGraph, tensor: int) -> None:
    if any(node.op_type == "GroupedMatMul" for node in graph.nodes):
        message = (
            f"Model {graph.name!r} must have no experts for 'tensor', because experts that are divided whole are not "
            f"predicted; got tensor={tensor}. Remove 'tensor'."
        )
        raise GraphError(message)
    attentions = find_attentions(graph)
    heads = {_head_count(graph.nodes[one.scores].inputs[0]) for one in attentions}
    heads |= {_key_head_count(graph, one) for one in attentions}
    if not heads:
        message = f"Model {graph.name!r} must have attention heads for 'tensor'; got none. Remove 'tensor'."
        raise GraphError(message)
    require_even_parts(graph, "heads", heads, tensor, key="tensor")


def _head_count(query: Shape) -> int:
    """Return the heads of *query*: beside the batch, or multiplied with it."""
    return query[1] if len(query) > 3 else abs(query[0])  # batch, heads, length, width


def _key_head_count(graph: ModelGraph, attention: Attention) -> int:
    """Return the heads of the keys, before those are repeated that several heads of queries share."""
    query = graph.nodes[attention.scores].inputs[0]
    windows = abs(query[0]) if len(query) > 3 else 1  # of a sample, each with all heads (Swin's)
    return max(attention.key_elements // max(windows * key_count(graph, attention) * query[-1], 1), 1)


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
    of_piece = -(-layers // (count * pieces))  # the last pieces have less, or nothing
    rounds, left = divmod(layers, count * of_piece)
    each = rounds * of_piece + min(left, of_piece)
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
    end = int(inside[-1]) + 1
    length = (end - int(starts[0])) // len(starts)
    repeats = kinds[end:] == kinds[end - length : len(kinds) - length]
    more = int(np.argmin(np.append(repeats, False)))
    edges = np.append(starts, end) + more
    before, of_one = (int(np.count_nonzero(one)) for one in (attentions < edges[0], attentions < edges[1]))
    unlike = before // max(of_one - before, 1)
    if unlike > 1 or np.count_nonzero(attentions >= edges[-1]):
        _refuse_layers(graph, "layers of several kinds")
    return np.append(np.maximum(edges[0] - length, 0), edges) if unlike else edges


def _refuse_layers(graph: ModelGraph, others: str) -> NoReturn:
    message = f"Model {graph.name!r} must have one row of equal layers for 'pipeline'; got {others}. Remove 'pipeline'."
    raise GraphError(message)


def _stage(graph: ModelGraph, blocks: Checkpoints, nodes: slice) -> Stage:
    inside = replace(blocks, start=blocks.start[nodes] - nodes.start, recomputed_nodes=blocks.recomputed_nodes[nodes])
    return Stage(_part(graph, nodes.start, nodes.stop), inside)


def _part(graph: ModelGraph, start: int, stop: int) -> ModelGraph:
    """Return the nodes of *graph* from *start* to *stop*; what earlier nodes give is an input, the newest the last."""
    nodes, producers = graph.nodes[start:stop], graph.producers[start:stop]
    inputs: dict[int, tuple[str, Shape]] = {}
    for node, sources in zip(nodes, producers, strict=True):
        for source, shape in zip(sources, node.inputs, strict=True):
            if source < start:
                inputs[source] = graph.inputs[-1 - source] if source < 0 else (f"stage_{source}", shape)
    inputs = dict(sorted(inputs.items()))
    places = {source: -1 - place for place, source in enumerate(inputs)}
    counted = sum(prod(shape) for node in nodes for shape in node.parameters)
    return replace(
        graph,
        nodes=nodes,
        producers=tuple(tuple(places.get(source, source - start) for source in sources) for sources in producers),
        inputs=tuple(inputs.values()),
        parameter_count=min(counted, graph.parameter_count),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTraffic:
    """What the GPUs of one copy of a model send each other in a step.

    Attributes:
        sum_count: Sums over the GPUs that divide a layer, one after the other.
        sum_bytes: Of all of them.
        ring: Keys and values, and their gradients, of other parts of the sequences.
        experts: What goes to experts on other GPUs, and back.
        handover_bytes: What a stage sends to its neighbours.
    """

    sum_count: float
    sum_bytes: float
    ring: RingTraffic
    experts: ExpertTraffic
    handover_bytes: float


def copy_traffic(layers: DividedLayers, graph: ModelGraph, workload: Workload) -> CopyTraffic:
    """Return what the GPUs send that hold the stage *graph*, of which each computes its part of *layers*."""
    passes = 3 if workload.checkpointing else 2  # forward, again, backward
    handover_bytes = 0.0
    if workload.pipeline > 1:
        _, newest = graph.inputs[-1]
        read = element_count(newest, workload.batch_size)
        part = read / (workload.tensor * workload.context)
        # activations, and gradients, of each piece
        handover_bytes = 2.0 * FLOAT_BYTES[workload.precision] * part * workload.virtual_pipeline
    return CopyTraffic(
        sum_count=passes * layers.sum_count,
        sum_bytes=passes * layers.sum_bytes,
        ring=ring_traffic(graph, workload),
        experts=ExpertTraffic(*(passes * one for one in expert_traffic(graph, workload))),
        handover_bytes=handover_bytes,
    )


def copy_notes(workload: Workload, gpu: Gpu, waits_s: float) -> tuple[str, str]:
    """Return what the figures of copies mean that several GPUs hold, each of which waits *waits_s* in a step."""
    count = workload.replica_count
    copies = f"{count} copies train by {workload.strategy}" if count > 1 else "One copy trains"
    if workload.expert > 1:
        copies += f", with {workload.weight_copies // workload.expert} of each expert (expert {workload.expert})"
    note = (
        f"Memory is that of the fullest GPU; step time and samples per second are of the "
        f"{workload.gpus_per_replica} GPUs that compute a batch together (tensor {workload.tensor}, context "
        f"{workload.context}, pipeline {workload.pipeline}). {copies}."
    )
    step = f"A step of batch {workload.batch_size} on {gpu.name}"
    return note, f"{step} waits {seconds(waits_s)} for other GPUs."


def wait_in_copy_s(traffic: CopyTraffic, passes_s: float, attention_s: float, workload: Workload, gpu: Gpu) -> float:
    """Return how long a GPU waits in a step for those that hold parts of its copy.

    With the bubble of the pipeline: (p - 1) / v steps for each m, of which this is the mean; more where m < p.

    Args:
        traffic: What they send each other.
        passes_s: What it computes forward and backward; the update is after the bubble.
        attention_s: Of that in attentions; keys and values travel meanwhile, but for the last block.
        workload: How many there are.
        gpu: Each of them.
    """
    network = workload.network_bytes_per_s
    sums_s = EXCHANGE_S * traffic.sum_count
    sums_s += traffic.sum_bytes * allreduce_s_per_byte(gpu, workload.tensor, network)
    sent_s_per_byte = send_s_per_byte(gpu, workload.tensor * workload.context, network, workload.tensor)
    ring_s = EXCHANGE_S * traffic.ring.hop_count + traffic.ring.sent_bytes * sent_s_per_byte
    ring_s = max(ring_s - attention_s * (1.0 - 1.0 / workload.context), 0.0)
    experts_s = EXCHANGE_S * traffic.experts.exchange_count
    experts_s += traffic.experts.sent_bytes * exchange_s_per_byte(gpu, workload.expert, network)
    distance = workload.gpus // workload.pipeline
    handover_s = traffic.handover_bytes * send_s_per_byte(gpu, workload.gpus, network, distance)
    bubble = _idle_micro_batches(workload) / workload.accumulate
    return (passes_s + sums_s + ring_s + experts_s + handover_s) * (1.0 + bubble) - passes_s


def _idle_micro_batches(workload: Workload) -> float:
    """Return for how many micro-batches a stage could have computed while the pipeline fills and drains.

    With fewer micro-batches than stages, a stage also waits for the next of its pieces: each micro-batch goes through
    all stages before.
    """
    at_once = min(workload.pipeline, workload.accumulate)
    return workload.pipeline - at_once + (at_once - 1) / workload.virtual_pipeline
