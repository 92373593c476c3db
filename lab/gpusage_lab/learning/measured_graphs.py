"""Graphs as a campaign computed them: attention of older releases, and normalizations in half precision.

Mixed precision casts what a normalization reads to 4 bytes. With timm's option ``--fast-norm``, its own layers cast it
to 2 bytes, and normalize that; PyTorch's layers, which some of its models have, stay as they are. The tables do not
name the option. What a GroupNorm takes beside a BatchNorm shows it: 2.2 to 2.7 times as long without, 1.2 times with.

Source:
    PyTorch's release notes: ``scaled_dot_product_attention`` came with 2.0; where no fused kernel takes the shapes, it
    computes in fp32 from 2.5 on, and in the precision of its inputs before. timm's ``hiera.py``, whose comment says of
    its global attention that it had a fifth size of one window before, which no fused kernel takes. timm 1.0.9 and
    1.0.31, ``layers/fast_norm.py``, and the class of each normalization in each of its models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpusage.predictors.work.structure import Role, analyze_structure
from gpusage_hooks.types import ModelGraph, Node, Shape

FIRST_FUSED = 200
FIRST_WIDE = 250
"""Releases, as timm's table writes them: 112 is 1.12."""


def as_computed_by(graph: ModelGraph, release: str) -> ModelGraph:
    """Return *graph* as *release* computes it, which may be empty: today's."""
    if not release:
        return graph
    if graph.name.startswith("hiera"):
        graph = _with_one_window(graph)
    if int(release) >= FIRST_WIDE:
        return graph
    structure = analyze_structure(graph)
    roles = structure.roles[structure.kind_of_node].tolist()
    if int(release) < FIRST_FUSED:
        return _with_steps(graph, {index for index, role in enumerate(roles) if _is_scores(graph, index, roles)}, "Mul")
    unfused = {index for index, role in enumerate(roles) if role == Role.UNFUSED and _is_scores(graph, index, roles)}
    return _with_steps(_in_half(graph, roles), unfused, "Identity") if unfused else graph


def _with_one_window(graph: ModelGraph) -> ModelGraph:
    """Return *graph* with a size of 1 for the windows of each fused attention."""
    structure = analyze_structure(graph)
    inside = np.isin(structure.roles, (Role.SCORES, Role.INSIDE, Role.VALUES))[structure.kind_of_node].tolist()
    nodes = [_windowed(node) if is_inside else node for node, is_inside in zip(graph.nodes, inside, strict=True)]
    return replace(graph, nodes=tuple(nodes))


def _windowed(node: Node) -> Node:
    return replace(node, inputs=tuple(map(_of_one, node.inputs)), outputs=tuple(map(_of_one, node.outputs)))


def _of_one(shape: Shape) -> Shape:
    return (*shape[:-2], 1, *shape[-2:])


def _in_half(graph: ModelGraph, roles: Sequence[int]) -> ModelGraph:
    """Return *graph* with each unfused softmax as an operator of equal work that mixed precision does not widen."""
    nodes = [
        replace(node, op_type="Hardmax") if node.op_type == "Softmax" and role == Role.UNFUSED else node
        for node, role in zip(graph.nodes, roles, strict=True)
    ]
    return replace(graph, nodes=tuple(nodes))


def _is_scores(graph: ModelGraph, index: int, roles: list[int]) -> bool:
    """Return whether a node is the product before a softmax of an attention."""
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


GPUS = ("rtx-3090", "rtx-4090", "rtx-pro-6000-max-q")
FIRST_RELEASE = 113
"""Of torch, from which on the files of these GPUs ran with the option."""
_OF_PYTORCH = (
    *("cait", "crossvit", "csatv2", "edgenext", "efficientformer", "efficientvit_mit", "inception_next", "mlp_mixer"),
    *("mobilevit", "pit", "sequencer", "swin_transformer", "swin_transformer_v2", "swin_transformer_v2_cr", "tiny_vit"),
    *("tnt", "twins", "vision_transformer_relpos", "volo", "xcit"),
)
"""Modules of timm most of whose layer normalizations are PyTorch's."""
_OF_PYTORCH_BEFORE_2025 = ("deit", "metaformer", "vision_transformer", "vision_transformer_hybrid")
"""More of them before torch 2.9 was measured."""
_TORCH_2_9 = 291


def with_fast_norm(graph: ModelGraph, module: str, release: int) -> ModelGraph:
    """Return *graph*, a model of timm's *module*, as *release* of torch computed it with ``--fast-norm``."""
    older = _OF_PYTORCH_BEFORE_2025 if release < _TORCH_2_9 else ()
    names = ["GroupNormalization", "RMSNormalization"]
    if module not in _OF_PYTORCH and module not in older:
        names.append("LayerNormalization")
    nodes = [replace(node, op_type=f"{node.op_type}InHalf") if node.op_type in names else node for node in graph.nodes]
    return replace(graph, nodes=tuple(nodes))
