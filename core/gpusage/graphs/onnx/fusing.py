"""Puts operators that an exporter split into several back together, as the one that PyTorch runs.

Exporters split operators that older ONNX operator sets lack. Each pattern here ends in one node, which replaces the
whole pattern; no node then reads the nodes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpusage.graphs.two_runs import ModelRun
from gpusage_hooks.types import Node

_PAIR = 2
"""Inputs of a sum, product or quotient of two activations."""
_GATES = {"Sigmoid": "Swish", "HardSigmoid": "HardSwish"}


@dataclass(frozen=True, slots=True)
class Fused:
    """A node that takes the place of a pattern, and what its inputs come from."""

    node: Node
    producers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Edges:
    """The nodes and who makes what they read."""

    nodes: Sequence[Node]
    producers: Sequence[tuple[int, ...]]

    def maker(self, index: int, op_types: Sequence[str], input_count: int = 1, place: int = 0) -> int:
        """Return who makes input *place* of node *index*; -1 unless it is one of *op_types* with so many inputs."""
        producer = self.producers[index][place] if index >= 0 and place < len(self.producers[index]) else -1
        fits = (
            producer >= 0 and self.nodes[producer].op_type in op_types and len(self.producers[producer]) == input_count
        )
        return producer if fits else -1

    def source(self, index: int) -> int | None:
        """Return who makes the first input of node *index*, ``None`` where there is no such node."""
        return self.producers[index][0] if index >= 0 and self.producers[index] else None


def fuse(run: ModelRun) -> ModelRun:
    """Return *run* with the last node of each known pattern replaced by the operator that the pattern is."""
    nodes, producers = list(run.nodes), list(run.producers)
    edges = Edges(nodes, producers)
    for index, node in enumerate(run.nodes):
        for pattern in _PATTERNS.get(node.op_type, ()):
            fused = pattern(edges, index)
            if fused is not None:
                nodes[index], producers[index] = fused.node, fused.producers
                break
    return replace(run, nodes=tuple(nodes), producers=tuple(producers))


def _gate(edges: Edges, index: int) -> Fused | None:
    """Find x * sigmoid(x) and x * hardsigmoid(x)."""
    for gate, other in _both_ways(edges, index):
        maker = edges.maker(index, tuple(_GATES), place=gate)
        if maker >= 0 and edges.source(maker) == edges.producers[index][other]:
            return _of_one(edges, index, other, _GATES[edges.nodes[maker].op_type])
    return None


def _gelu(edges: Edges, index: int) -> Fused | None:
    """Find x * (1 + erf(x / sqrt 2)) / 2, with the half before, between or after."""
    if len(edges.producers[index]) == 1:  # the half comes last
        product = edges.maker(index, ("Mul",), input_count=_PAIR)
        return _half_gelu(edges, index, product, halved=False) if product >= 0 else None
    return _half_gelu(edges, index, index, halved=True)


def _half_gelu(edges: Edges, last: int, product: int, *, halved: bool) -> Fused | None:
    for sum_, other in _both_ways(edges, product):
        scaled = edges.maker(edges.maker(edges.maker(product, ("Add",), place=sum_), ("Erf",)), ("Mul", "Div"))
        start = edges.source(scaled)
        if start is None:
            continue
        if not halved and edges.producers[product][other] == start:
            return _of_one(edges, last, 0, "Gelu", start)
        half = edges.maker(product, ("Mul", "Div"), place=other)
        if halved and edges.source(half) == start:
            return _of_one(edges, last, 0, "Gelu", start)
    return None


def _layer_normalization(edges: Edges, index: int) -> Fused | None:
    """Find (x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + shift, on the last axis."""
    shift = edges.nodes[index]
    scale = edges.maker(index, ("Mul",))
    quotient = edges.maker(scale, ("Div",), input_count=_PAIR)
    if quotient < 0 or len(shift.parameters) != 1 or len(edges.nodes[scale].parameters) != 1:
        return None
    centred = edges.maker(quotient, ("Sub",), input_count=_PAIR)
    start = edges.source(centred)
    variance = edges.maker(edges.maker(quotient, ("Sqrt",), place=1), ("Add",))
    square = edges.maker(edges.maker(variance, ("ReduceMean",)), ("Pow", "Mul"))
    square = square if square >= 0 else edges.maker(edges.maker(variance, ("ReduceMean",)), ("Mul",), input_count=_PAIR)
    again = edges.maker(square, ("Sub",), input_count=_PAIR)
    mean = edges.maker(centred, ("ReduceMean",), place=1)
    if start is None or edges.source(again) != start or edges.source(mean) != start:
        return None
    parameters = (*edges.nodes[scale].parameters, *shift.parameters)
    node = replace(
        shift,
        op_type="LayerNormalization",
        inputs=edges.nodes[centred].inputs[:1],
        parameters=parameters,
        attributes=(("axis", -len(parameters[0])),),
    )
    return Fused(node, (start,))


def _of_one(edges: Edges, index: int, place: int, op_type: str, start: int | None = None) -> Fused:
    """Return node *index* as *op_type* of one input, which has the output's shape."""
    node = edges.nodes[index]
    source = edges.producers[index][place] if start is None else start
    return Fused(replace(node, op_type=op_type, inputs=node.outputs[:1], parameters=(), attributes=()), (source,))


def _both_ways(edges: Edges, index: int) -> Iterator[tuple[int, int]]:
    """Give the places of a node's two inputs in both orders."""
    if len(edges.producers[index]) == _PAIR:
        yield 0, 1
        yield 1, 0


_PATTERNS: dict[str, tuple[Callable[[Edges, int], Fused | None], ...]] = {
    "Mul": (_gate, _gelu),
    "Add": (_layer_normalization,),
}
