"""Training where each sequence is divided among several GPUs (context parallelism), which pass on keys and values.

A GPU has a part of the tokens of each sample in every layer: that part of all work and of all activations, and all of
the weights. Only an attention needs tokens of the others. Their keys and values come round a ring, once forward, and
once more backward together with their gradients. A block of them takes one exchange and the time of its bytes; a GPU
computes the attention to the block before meanwhile, so it waits for the rest alone. PyTorch gathers all blocks first,
which sends as much. Each GPU has a piece from the start of a sequence and the one as far from its end, so that a causal
mask leaves all as much to do.

The gradients of weights are summed over these GPUs as over those with other samples, and `strategy` divides what they
hold alike.

Source:
    Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", arXiv 2310.01889,
    section 3; Megatron Core's user guide, "Context Parallel Overview"; PyTorch's tutorial "Introduction to Context
    Parallel" (both ways to pass on keys and values, and the pieces of each GPU).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpusage.devices.precisions import FLOAT_BYTES
from gpusage.predictors.parallel.even_parts import divisor_advice
from gpusage.predictors.work.lowering import Lowering
from gpusage.predictors.work.sequences import find_attentions, key_count
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Workload

RING_PASSES = 3
"""How often keys and values, or as many numbers, come round for one attention: forward, backward, and gradients."""

# What is in proportion to the tokens that a GPU has.
_OF_TOKENS = (
    *("flop", "read_bytes", "written_bytes", "output_bytes", "saved_bytes", "cast_elements", "reorder_bytes"),
    "output_elements_of_model",
)


def part_of_tokens(lowering: Lowering, graph: ModelGraph, workload: Workload) -> Lowering:
    """Return what a GPU does of *lowering*, which is of *graph*, with its part of the tokens.

    Raises:
        GraphError: The model does not read sequences that can be divided evenly.
    """
    if workload.context == 1:
        return lowering

    _require_divisible(graph, workload.context)
    part = 1.0 / workload.context
    columns = {name: getattr(lowering, name) * part for name in _OF_TOKENS}
    return replace(lowering, **columns, output_elements=np.maximum(lowering.output_elements * part, 1.0))


class RingTraffic(NamedTuple):
    """What a GPU sends round its ring in a step.

    Attributes:
        hop_count: Blocks that go to the next GPU, one after the other; gradients go with keys and values.
        sent_bytes: Of all of them.
    """

    hop_count: float
    sent_bytes: float


def ring_traffic(graph: ModelGraph, workload: Workload) -> RingTraffic:
    """Return what each GPU sends round its ring in a step of *graph*: the part of the heads that it has."""
    if workload.context == 1:
        return RingTraffic(0.0, 0.0)

    attentions, again = find_attentions(graph), int(workload.checkpointing)
    of_ring = FLOAT_BYTES[workload.precision] * workload.batch_size / workload.tensor
    of_ring *= sum(one.key_elements + one.value_elements for one in attentions)
    return RingTraffic(
        hop_count=(2.0 + again) * len(attentions) * (workload.context - 1),
        sent_bytes=(RING_PASSES + again) * of_ring * (workload.context - 1) / workload.context,
    )


def _require_divisible(graph: ModelGraph, context: int) -> None:
    # Queries and keys of each sample.
    lengths = set[int]()
    for one in find_attentions(graph):
        query, *_ = graph.nodes[one.scores].inputs
        lengths |= {query[-2], key_count(graph, one)}
    read = {size for _, shape in graph.inputs for size in shape[:2]}  # batch and tokens, in either order
    if len(lengths) != 1 or not lengths <= read:
        message = (
            f"Model {graph.name!r} must read tokens, in sequences of one length, and attend to all of them for "
            "'context'; got another model. Remove 'context'."
        )
        raise GraphError(message)

    length = lengths.pop()
    if length % (2 * context):
        message = (
            f"Model {graph.name!r} must read a multiple of 2 x context tokens, two pieces for each GPU; got {length} "
            f"tokens, context={context}. {divisor_advice('context', length // 2 if length % 2 == 0 else 1)}."
        )
        raise GraphError(message)
