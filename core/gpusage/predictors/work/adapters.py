"""LoRA: a graph with a pair of thin products beside each of its linear layers, which are all that is trained.

The pair reads what the layer reads, and a scaled sum joins it to what the layer writes, as peft and litgpt have it. A
layer that makes the model's output has none, as with ``target_modules="all-linear"``.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685, section 4.1.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from gpusage.predictors.arrays import BoolArray
from gpusage.predictors.work.structure import Structure
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node, Shape

_MARK = ("adapter", 1)
"""An attribute of the thin products, so that they are of another kind than any product of the model."""
_MATRIX_RANK = 2


def with_adapters(graph: ModelGraph, rank: int) -> ModelGraph:
    """Return *graph* with adapters of *rank* at its linear layers; its trained share is theirs.

    Raises:
        GraphError: No layer can have an adapter.
    """
    read = {source for sources in graph.producers for source in sources}
    nodes: list[Node] = []
    producers: list[tuple[int, ...]] = []
    place: dict[int, int] = {}
    for index, (node, sources) in enumerate(zip(graph.nodes, graph.producers, strict=True)):
        sources_here = tuple(place.get(source, source) for source in sources)
        nodes.append(node)
        producers.append(sources_here)
        if index in read and _is_linear(node):
            layer = len(nodes) - 1
            nodes += _adapter(node.inputs[0], node.outputs[0], rank)
            producers += [sources_here, (layer + 1,), (layer + 2,), (layer, layer + 3)]
        place[index] = len(nodes) - 1
    added = sum(rows * columns for node in nodes if _MARK in node.attributes for rows, columns in node.parameters)
    if not added:
        message = f"Model {graph.name!r} must have linear layers before its output for 'lora'; got none. Remove 'lora'."
        raise GraphError(message)
    count = graph.parameter_count + added
    return replace(
        graph, nodes=tuple(nodes), producers=tuple(producers), parameter_count=count, trainable=added / count
    )


def _is_linear(node: Node) -> bool:
    is_product = node.op_type in ("MatMul", "Gemm") and len(node.inputs) == 1
    return is_product and bool(node.parameters) and len(node.parameters[0]) == _MATRIX_RANK


@lru_cache(maxsize=64)
def _adapter(read: Shape, written: Shape, rank: int) -> tuple[Node, Node, Node, Node]:
    """Return the nodes beside a layer that reads and writes tensors of these shapes: two products, scale and sum.

    Equal layers share them, as nodes of one kind are recognized as the same object.
    """
    thin = (*read[:-1], rank)
    down, up = (
        Node(op_type="MatMul", inputs=(a,), outputs=(b,), parameters=((a[-1], b[-1]),), attributes=(_MARK,))
        for a, b in ((read, thin), (thin, written))
    )
    scale = Node(op_type="Mul", inputs=(written,), outputs=(written,))
    return down, up, scale, Node(op_type="Add", inputs=(written, written), outputs=(written,))


def is_adapter(structure: Structure) -> BoolArray:
    """Tell for each kind of node whether it is one of an adapter's products."""
    return np.array([_MARK in kind.attributes for kind in structure.kinds], dtype=bool)
