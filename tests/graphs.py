"""Small models built by hand, for tests of what reads, predicts and decides; every one follows the batch."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from gpusage_hooks.types import ModelGraph, Node, Shape


def node(op_type: str, inputs: list[Shape], output: Shape, *parameters: Shape, **attributes: int) -> Node:
    return Node(
        op_type=op_type,
        inputs=tuple(inputs),
        outputs=(output,),
        parameters=parameters,
        attributes=tuple(sorted(attributes.items())),
    )


def chain(name: str, nodes: list[Node], input_shape: Shape) -> ModelGraph:
    """Return the graph in which each node reads the one before it, and every weight is used once."""
    return ModelGraph(
        name=name,
        source=f"test:{name}",
        nodes=tuple(nodes),
        producers=tuple((index - 1,) for index in range(len(nodes))),
        inputs=(("input", input_shape),),
        parameter_count=sum(_count(shape) for node in nodes for shape in node.parameters),
    )


def _count(shape: Shape) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def stack(width: int, inner: int, depth: int, length: int) -> ModelGraph:
    """Return *depth* blocks of products from *width* to *inner* and back, a GELU between: half a transformer."""
    narrow, wide = (-1, length, width), (-1, length, inner)
    block = [
        node("MatMul", [narrow], wide, (width, inner)),
        node("Gelu", [wide], wide),
        node("MatMul", [wide], narrow, (inner, width)),
    ]
    return chain("stack", block * depth, narrow)


def language_model(hidden: int, heads: int, key_heads: int, inner: int, words: int, length: int) -> ModelGraph:
    """Return an embedding, one layer of a transformer, and a product that gives a row for all words."""
    width = hidden // heads
    tokens: Shape = (-1, length, hidden)
    keys: Shape = (-1, length, key_heads * width)
    queries, scores = (-1, heads, length, width), (-1, heads, length, length)
    rows: list[tuple[Node, tuple[int, ...]]] = [
        (node("Gather", [(-1, length)], tokens, (words, hidden)), (-1,)),
        (node("MatMul", [tokens], tokens, (hidden, hidden)), (0,)),
        (node("Reshape", [tokens], queries), (1,)),
        (node("MatMul", [tokens], keys, (hidden, key_heads * width)), (0,)),
        (node("Expand", [keys], (-1, heads, width, length)), (3,)),
        (node("MatMul", [tokens], keys, (hidden, key_heads * width)), (0,)),
        (node("Expand", [keys], queries), (5,)),
        (node("MatMul", [queries, (-1, heads, width, length)], scores), (2, 4)),
        (node("Softmax", [scores], scores), (7,)),
        (node("MatMul", [scores, queries], queries), (8, 6)),
        (node("Reshape", [queries], tokens), (9,)),
        (node("MatMul", [tokens], tokens, (hidden, hidden)), (10,)),
        (node("MatMul", [tokens], (-1, length, inner), (hidden, inner)), (11,)),
        (node("Gelu", [(-1, length, inner)], (-1, length, inner)), (12,)),
        (node("MatMul", [(-1, length, inner)], tokens, (inner, hidden)), (13,)),
        (node("MatMul", [tokens], (-1, length, words), (hidden, words)), (14,)),
    ]
    weights = 2 * words * hidden + 2 * hidden**2 + 2 * hidden * key_heads * width + 2 * hidden * inner
    return ModelGraph(
        name="language model",
        source="test:language",
        nodes=tuple(row for row, _ in rows),
        producers=tuple(producers for _, producers in rows),
        inputs=(("input_ids", (-1, length)),),
        parameter_count=weights,
    )


def with_layers(one: ModelGraph, count: int) -> ModelGraph:
    """Return a `language_model` with *count* layers in place of one."""
    inside, size = one.nodes[1:-1], len(one.nodes) - 2
    steps = range(0, count * size, size)
    layers = [tuple(source + step for source in row) for step in steps for row in one.producers[1:-1]]
    weights = sum(prod(shape) for node in inside for shape in node.parameters)
    return replace(
        one,
        nodes=(one.nodes[0], *inside * count, one.nodes[-1]),
        producers=(one.producers[0], *layers, (count * size,)),
        parameter_count=one.parameter_count + (count - 1) * weights,
    )


def convolution_graph(depth: int = 4, channels: int = 64, pixels: int = 56) -> ModelGraph:
    """Return *depth* blocks of convolution, normalisation and rectifier, a pool and a classifier of 1,000 classes."""
    shape = (-1, channels, pixels, pixels)
    nodes = [node("Conv", [(-1, 3, pixels, pixels)], shape, (channels, 3, 3, 3), group=1)]
    for _ in range(depth):
        nodes += [
            node("Conv", [shape], shape, (channels, channels, 3, 3), group=1),
            node("BatchNormalization", [shape], shape, (channels,), (channels,)),
            node("Relu", [shape], shape),
        ]
    nodes += [
        node("GlobalAveragePool", [shape], (-1, channels, 1, 1)),
        node("Flatten", [(-1, channels, 1, 1)], (-1, channels)),
        node("Gemm", [(-1, channels)], (-1, 1000), (1000, channels), (1000,), transB=1),
    ]
    return chain("convolution", nodes, (-1, 3, pixels, pixels))


def perceptron_graph(width: int = 256, depth: int = 2) -> ModelGraph:
    """Return *depth* products of *width* with a rectifier after each."""
    shape = (-1, width)
    nodes = []
    for _ in range(depth):
        nodes += [node("Gemm", [shape], shape, (width, width), (width,), transB=1), node("Relu", [shape], shape)]
    return chain("perceptron", nodes, shape)


def attention_graph(length: int = 128, heads: int = 4, width: int = 64, *, scaled_scores: bool = False) -> ModelGraph:
    """Return one attention over three model inputs; *scaled_scores* stands for code that computes its own scores."""
    shape, scores = (-1, heads, length, width), (-1, heads, length, length)
    nodes = [node("MatMul", [shape, (-1, heads, width, length)], scores)]
    producers: list[tuple[int, ...]] = [(-1, -2)]
    if scaled_scores:
        nodes.append(node("Mul", [scores], scores))
        producers.append((0,))
    softmax = len(nodes)
    nodes += [node("Softmax", [scores], scores), node("MatMul", [scores, shape], shape)]
    producers += [(softmax - 1,), (softmax, -3)]
    return ModelGraph(
        name="attention",
        source="test:attention",
        nodes=tuple(nodes),
        producers=tuple(producers),
        inputs=(("query", shape), ("key", (-1, heads, width, length)), ("value", shape)),
        parameter_count=0,
    )


def recurrent_graph(length: int = 32, width: int = 256) -> ModelGraph:
    """Return an embedding and one LSTM, batch second as in the ONNX operator."""
    nodes = [
        node("Gather", [(length, -1)], (length, -1, width), (10_000, width)),
        node("LSTM", [(length, -1, width)], (length, 1, -1, width), (1, 4 * width, width), (1, 4 * width, width)),
    ]
    return chain("recurrent", nodes, (length, -1))


def strange_graph() -> ModelGraph:
    """Return a graph with an operator that no rule describes."""
    nodes = [node("Relu", [(-1, 64)], (-1, 64)), node("Fourier", [(-1, 64)], (-1, 64))]
    graph = chain("strange", nodes, (-1, 64))
    return ModelGraph(
        name=graph.name,
        source=graph.source,
        nodes=graph.nodes,
        producers=graph.producers,
        inputs=graph.inputs,
        parameter_count=0,
        unknown_op_types=(("Fourier", 1),),
    )


ALL = (convolution_graph(), perceptron_graph(), attention_graph(), recurrent_graph(), strange_graph())
