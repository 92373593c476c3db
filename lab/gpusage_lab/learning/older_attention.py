"""Attention as older releases of PyTorch computed it: what was measured with them is read so.

Source:
    PyTorch's release notes: ``scaled_dot_product_attention`` came with 2.0; where no fused kernel takes the shapes, it
    computes in fp32 from 2.5 on, and in the precision of its inputs before.
"""

from __future__ import annotations

from dataclasses import replace

from gpusage.predictors.work.structure import Role, structure_of
from gpusage_hooks.types import ModelGraph, Node

FIRST_FUSED = 200
FIRST_WIDE = 250
"""Releases, as timm's table writes them: 112 is 1.12."""


def as_computed_by(graph: ModelGraph, release: str) -> ModelGraph:
    """Return *graph* as *release* computes it, which may be empty: today's."""
    if not release or int(release) >= FIRST_WIDE:
        return graph
    structure = structure_of(graph)
    roles = structure.roles[structure.kind_of_node].tolist()
    if int(release) < FIRST_FUSED:
        return _with_steps(graph, {index for index, role in enumerate(roles) if _is_scores(graph, index, roles)}, "Mul")
    unfused = {index for index, role in enumerate(roles) if role == Role.UNFUSED and _is_scores(graph, index, roles)}
    return _with_steps(graph, unfused, "Identity")


def _is_scores(graph: ModelGraph, index: int, roles: list[int]) -> bool:
    """Tell whether a node is the product before a softmax of an attention."""
    if roles[index] == Role.UNFUSED and graph.nodes[index].op_type == "MatMul":
        return not any(producer >= 0 and roles[producer] == Role.UNFUSED for producer in graph.producers[index])
    return roles[index] == Role.SCORES


def _with_steps(graph: ModelGraph, after: set[int], op_type: str) -> ModelGraph:
    """Return *graph* with a node of *op_type* behind each of the nodes *after*: the scores then reach memory."""
    nodes: list[Node] = []
    producers: list[tuple[int, ...]] = []
    places: list[int] = []
    steps: dict[Node, Node] = {}
    for index, node in enumerate(graph.nodes):
        nodes.append(node)
        producers.append(tuple(places[maker] if maker >= 0 else maker for maker in graph.producers[index]))
        if index in after:
            producers.append((len(nodes) - 1,))
            nodes.append(steps.setdefault(node, Node(op_type=op_type, inputs=node.outputs, outputs=node.outputs)))
        places.append(len(nodes) - 1)
    return replace(graph, nodes=tuple(nodes), producers=tuple(producers)) if after else graph
