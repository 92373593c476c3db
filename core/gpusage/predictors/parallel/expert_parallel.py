"""Training where the experts of a mixture are divided among GPUs, which send tokens to the experts that these go to.

Each GPU has its own samples and all weights but those of experts, of which it has a part. Before the experts of a
layer, each token goes to the GPUs of its experts, and what they give comes back: two all-to-alls in each pass. If all
experts are as popular, a GPU computes as much as without, and reads fewer weights.

The GPUs are some of those that train the same weights otherwise. Gradients of experts are summed over those alone that
have the same experts, and ``zero1`` and its like divide them over these: of a GPU's weights, more are its own.

Source:
    Lepikhin et al., "GShard", arXiv 2006.16668, section 3; Liu et al., "MoE Parallel Folding", arXiv 2504.14960,
    section 2; Megatron Core's user guide, "Mixture of Experts".
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from gpusage.devices.precisions import FLOAT_BYTES
from gpusage.predictors.parallel.even_parts import require_even_parts
from gpusage.predictors.work.lowering import Lowering
from gpusage.predictors.work.operators import element_count
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node, Workload

# Nodes between two products of the same experts; rarely five.
_MOST_STEPS = 40


def part_of_experts(lowering: Lowering, graph: ModelGraph, workload: Workload) -> Lowering:
    """Return what a GPU does of *lowering*, which is of *graph*, with its part of the experts.

    Raises:
        GraphError: The model has no experts that can be divided evenly.
    """
    if workload.expert == 1:
        return lowering
    counts = {node.parameters[0][0] for node in lowering.structure.kinds if _is_of_experts(node)}
    if not counts:
        message = f"Model {graph.name!r} must have routed experts for 'expert'; got none. Remove 'expert'."
        raise GraphError(message)
    require_even_parts(graph, "experts", counts, workload.expert, key="expert")

    # All weights but those of experts are whole on each GPU.
    elsewhere = 1.0 - 1.0 / workload.expert
    of_experts = np.array([_is_of_experts(node) for node in lowering.structure.kinds], dtype=bool)
    return replace(
        lowering,
        parameter_bytes=lowering.parameter_bytes * np.where(of_experts, 1.0 / workload.expert, 1.0),
        parameter_count=lowering.parameter_count - round(elsewhere * _expert_weights(lowering)),
    )


def expert_share(lowering: Lowering, workload: Workload) -> float:
    """Return the part of the weights on each GPU that is of experts; 0 where all GPUs have all experts."""
    if workload.expert == 1:
        return 0.0
    return _expert_weights(lowering) / workload.expert / max(float(lowering.parameter_count), 1.0)


def own_share(lowering: Lowering, workload: Workload) -> float:
    """Return the part of the weights on each GPU whose state it alone has, where the state is divided."""
    share = expert_share(lowering, workload)
    return (1.0 + (workload.expert - 1) * share) / workload.weight_copies


class ExpertTraffic(NamedTuple):
    """What a GPU sends to experts, and gets back from them, in a forward pass.

    Attributes:
        exchange_count: All-to-alls, one after the other.
        sent_bytes: In all of them, for experts of its own, too.
    """

    exchange_count: float
    sent_bytes: float


def expert_traffic(graph: ModelGraph, workload: Workload) -> ExpertTraffic:
    """Return what each GPU sends: the inputs of each layer's experts, and their outputs."""
    if workload.expert == 1:
        return ExpertTraffic(0.0, 0.0)

    # The first product of a layer's experts reads what the tokens' GPUs send; the last one's outputs are sent back.
    experts = [index for index, node in enumerate(graph.nodes) if _is_of_experts(node)]
    before = {index: _experts_before(graph, index) for index in experts}
    last = set(experts).difference(*before.values())
    inputs = {graph.producers[one][0]: graph.nodes[one].inputs[0] for one in experts if not before[one]}
    sent = [*inputs.values(), *(graph.nodes[one].outputs[0] for one in last)]

    elements = sum(element_count(shape, workload.batch_size) for shape in sent)
    return ExpertTraffic(len(sent), FLOAT_BYTES[workload.precision] * elements / workload.context)


def _experts_before(graph: ModelGraph, index: int) -> set[int]:
    """Return the products of experts from which node *index* follows, with nothing but single numbers between."""
    earlier, ways = set[int](), {source for source in graph.producers[index] if source >= 0}
    for _ in range(_MOST_STEPS):
        earlier |= {one for one in ways if _is_of_experts(graph.nodes[one])}
        ways = {source for one in ways if not graph.nodes[one].parameters for source in graph.producers[one]}
        ways = {one for one in ways if one >= 0}
    return earlier


def _is_of_experts(node: Node) -> bool:
    return node.op_type == "GroupedMatMul" and bool(node.parameters)


def _expert_weights(lowering: Lowering) -> float:
    """Return how many weights all experts have."""
    sizes = [prod(node.parameters[0]) if _is_of_experts(node) else 0 for node in lowering.structure.kinds]
    return float(np.array(sizes, dtype=np.float64) @ lowering.structure.counts)
