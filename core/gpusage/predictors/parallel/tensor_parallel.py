"""Training where several GPUs divide each layer of one copy of a model (tensor parallelism).

Of two linear layers that follow one another, a GPU has some columns of the first and the same rows of the second, and
some heads of each attention. What the second gives is summed over all GPUs forward, and so is the gradient of what the
first reads backward: two sums each way in a layer of a transformer. Each GPU does whole what stands between (norms,
dropouts, sums with what went before). With **sequence parallelism** it does so for its part of the tokens: a sum is
then a reduce-scatter before and an all-gather behind, which send as much. Megatron's backward pass gathers the input of
the first layer once more, behind the product with the weights, so nobody waits for that. Megatron does so if asked
(``--sequence-parallel``; NeMo's recipes ask), PyTorch's own tensor parallelism always (torchtitan).

Nothing here was fitted.

Source:
    Shoeybi et al., arXiv 1909.08053, section 3; Korthikanti et al., "Reducing Activation Recomputation in Large
    Transformer Models", arXiv 2205.05198, sections 4.2.2 and 4.2.3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpusage.devices.precisions import FLOAT_BYTES
from gpusage.predictors.arrays import IntArray
from gpusage.predictors.parallel.data_parallel import FULLY_SHARDED
from gpusage.predictors.parallel.even_parts import require_even_parts
from gpusage.predictors.work.lowering import Lowering, split_kinds
from gpusage.predictors.work.operators import OperatorClass
from gpusage.predictors.work.sequences import find_attentions, key_count
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Workload


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

    # A linear layer reads whole and writes divided, or reads divided and sums; all else does as what it reads.
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


# Whether a node reads, and whether it writes, what is divided: a label is the sum of both.
_READS, _WRITES = 2, 1


def _divided_ends(graph: ModelGraph, is_linear: list[bool]) -> IntArray:
    """Return a label for each node: a linear layer divides what it writes, and the next one sums it.

    What reaches the scores of an attention is divided by heads, so a linear layer that stands alone before a block (of
    OPT's small models, ALBERT, wav2vec 2) is whole.
    """
    scores, whole = sorted(one.scores for one in find_attentions(graph)), set[int]()

    # Each round finds one more layer that must be whole, until every attention reads what is divided.
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

    # Depth first; a way ends at the first linear layer, or at a model input, which has a negative number.
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
    heads = set[int]()
    for one in attentions:
        query = graph.nodes[one.scores].inputs[0]  # batch, heads, length, width; or heads multiplied with the batch
        windows = abs(query[0]) if len(query) > 3 else 1  # of a sample, each with all heads (Swin's)
        # Several heads of queries may share keys, which are repeated for them only after they are divided.
        keys = one.key_elements // max(windows * key_count(graph, one) * query[-1], 1)
        heads |= {query[1] if len(query) > 3 else abs(query[0]), max(keys, 1)}
    if not heads:
        message = f"Model {graph.name!r} must have attention heads for 'tensor'; got none. Remove 'tensor'."
        raise GraphError(message)
    require_even_parts(graph, "heads", heads, tensor, key="tensor")
