"""Takes apart what ONNX Runtime fused, into the operators that a model is trained with.

The predictors know those. A convolution with its activation, an attention with the product that makes query, key and
value, and the embedding of a text are one node each in a file that ONNX Runtime wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from gpusage.graphs.onnx.file import Attribute, OnnxGraph, OnnxNode

RUNTIME = "com.microsoft"
BLOCKED = "com.microsoft.nchwc"
"""Operators on channels that lie in blocks; only a processor runs them."""

_TO_CHANNELS_FIRST = {"perm": (0, 3, 1, 2)}
_TO_CHANNELS_LAST = {"perm": (0, 2, 3, 1)}


def unfused(graph: OnnxGraph) -> OnnxGraph:
    """Return *graph* with each node of ONNX Runtime that does several operators' work as these operators."""
    return replace(graph, nodes=tuple(part for node in graph.nodes for part in _parts(node)))


def _parts(node: OnnxNode) -> Iterator[OnnxNode]:
    if node.domain == BLOCKED:
        node = replace(node, domain=RUNTIME, op_type="BlockedConv" if node.op_type == "Conv" else node.op_type)
    parts = _PARTS.get(node.op_type) if node.domain == RUNTIME and node.outputs else None
    if parts is None:
        yield node
    else:
        yield from parts(node, (*node.inputs, *("",) * _MOST_INPUTS))


def _convolution(node: OnnxNode, inputs: tuple[str, ...]) -> Iterator[OnnxNode]:
    """Yield a convolution, the sum with what stands beside it, and the activation."""
    data, weight, bias, beside, *_ = inputs
    out = node.outputs[0]
    op_type = "Conv" if node.op_type == "FusedConv" else node.op_type
    activation = node.attributes.get("activation")
    steps: list[tuple[str, tuple[str, ...], Mapping[str, Attribute]]] = [
        (op_type, (data, weight, bias) if bias else (data, weight), node.attributes)
    ]
    if beside:
        steps.append(("Add", (beside,), {}))
    if isinstance(activation, str) and activation:
        steps.append((activation, (), {}))
    names = [f"{out}/{place}" for place in range(1, len(steps))]
    for (kind, others, attributes), (before, after) in zip(steps, pairwise(["", *names, out]), strict=True):
        domain = RUNTIME if kind == "BlockedConv" else ""
        yield OnnxNode(node.name, kind, domain, (before, *others) if before else others, (after,), attributes)


def _channels_last(node: OnnxNode, inputs: tuple[str, ...]) -> Iterator[OnnxNode]:
    """Yield a convolution of pictures whose channels lie last."""
    out = node.outputs[0]
    yield OnnxNode(node.name, "Transpose", "", inputs[:1], (f"{out}/data",), _TO_CHANNELS_FIRST)
    yield OnnxNode(node.name, "Transpose", "", inputs[1:2], (f"{out}/weight",), _TO_CHANNELS_FIRST)
    turned = replace(node, inputs=(f"{out}/data", f"{out}/weight", *inputs[2:4]), outputs=(f"{out}/turned",))
    yield from _convolution(replace(turned, op_type="FusedConv"), (*turned.inputs, ""))
    yield OnnxNode(node.name, "Transpose", "", (f"{out}/turned",), (out,), _TO_CHANNELS_LAST)


def _attention(node: OnnxNode, inputs: tuple[str, ...]) -> Iterator[OnnxNode]:
    """Yield the product that makes query, key and value, and the attention that reads them as one tensor."""
    data, weight, bias, mask, past, *_ = inputs
    product, domain = "MatMul", ""
    if node.op_type == "QAttention":
        mask, past = inputs[5], inputs[8]
        product, domain = "MatMulIntegerToFloat", RUNTIME
    out = node.outputs[0]
    packed = f"{out}/packed"
    yield OnnxNode(node.name, product, domain, (data, weight), (f"{out}/product" if bias else packed,), {})
    if bias:
        yield OnnxNode(node.name, "Add", "", (f"{out}/product", bias), (packed,), {})
    yield replace(node, op_type="Attention", inputs=(packed, "", "", mask, past))


def _embedding(node: OnnxNode, inputs: tuple[str, ...]) -> Iterator[OnnxNode]:
    """Yield the embeddings of words, places and segments, their sum, and its normalization."""
    words, segments, word_table, place_table, segment_table, scale, shift, mask, places = inputs[:9]
    out, lengths, total = (*node.outputs, "", "")[:3]
    tables = [(word_table, words), (place_table, places or words)]
    if segments and segment_table:
        tables.append((segment_table, segments))
    for number, (table, indices) in enumerate(tables):
        yield OnnxNode(node.name, "Gather", "", (table, indices), (f"{out}/{number}",), {})
    sums = [f"{out}/0", *(f"{out}/sum{number}" for number in range(1, len(tables) - 1)), total or f"{out}/sum"]
    for number, (before, after) in enumerate(pairwise(sums), 1):
        yield OnnxNode(node.name, "Add", "", (before, f"{out}/{number}"), (after,), {})
    yield OnnxNode(node.name, "LayerNormalization", "", (sums[-1], scale, shift), (out,), {})
    if lengths:
        yield OnnxNode(node.name, "ReduceSum", "", (mask or words,), (lengths,), {"axes": (1,), "keepdims": 0})


_MOST_INPUTS = 9
"""Of the operators below; those that a node leaves out are read as ``""``."""
_PARTS: Mapping[str, Callable[[OnnxNode, tuple[str, ...]], Iterator[OnnxNode]]] = {
    **dict.fromkeys(("FusedConv", "BlockedConv"), _convolution),
    **dict.fromkeys(("NhwcConv", "NhwcFusedConv"), _channels_last),
    **dict.fromkeys(("Attention", "QAttention"), _attention),
    "EmbedLayerNormalization": _embedding,
}
