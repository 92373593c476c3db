"""Rewrites of a graph: folded, fused and split operators become the operators that PyTorch trains with.

The job trains the model as PyTorch defines it, and the predictors were fitted on those operators.

1. Before the run: the order of the nodes, batch normalizations that an exporter folded into convolutions, and fused
   nodes of ONNX Runtime.
2. After it: operators that exporters split because older ONNX operator sets lack them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from gpusage.graphs.batch_sizes import ModelRun
from gpusage.graphs.model_files import quoted
from gpusage.graphs.onnx.file import Attribute, OnnxGraph, OnnxNode, OnnxTensor
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Node

# In evaluation a batch normalization is a factor and an offset per channel, which exporters multiply into the weights
# of the convolution before it. Names show it: torch.onnx gives the new weights numbers for names (``onnx::Conv_497``,
# with a bias) or the convolution's output the normalization's name (``getitem_3``); tf2onnx calls the weights
# ``stem/merged_input:0``.
_NUMBERED = re.compile(r"(?:onnx::Conv_)?\d+")
_MERGED = re.compile(r".*/merged_input(?::\d+)?")
_NORMALIZED = re.compile(r"(?:getitem|batch_norm|_native_batch_norm\w*)(?:_\d+)?")
_WEIGHT, _BIAS = 1, 2
_STATISTICS = ("scale", "shift", "mean", "variance")

RUNTIME = "com.microsoft"
BLOCKED = "com.microsoft.nchwc"
"""Operators on channels in blocks (NCHWc), which ONNX Runtime uses on CPUs."""

_TO_CHANNELS_FIRST = {"perm": (0, 3, 1, 2)}
_TO_CHANNELS_LAST = {"perm": (0, 2, 3, 1)}

# Inputs of a sum, product or quotient of two activations; with a weight it has one.
_PAIR = 2
_GATES = {"Sigmoid": "Swish", "HardSigmoid": "HardSwish"}


def sorted_nodes(graph: OnnxGraph) -> Iterable[OnnxNode]:
    """Return the nodes in topological order: as in the file, which ONNX requires, else as each becomes ready.

    Raises:
        GraphError: They have a cycle.
    """
    producers = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs if name}
    # Nearly all files keep ONNX's rule.
    if all(producers.get(name, -1) < index for index, node in enumerate(graph.nodes) for name in node.inputs):
        return graph.nodes

    before = {
        index: {producers[name] for name in node.inputs if name in producers} for index, node in enumerate(graph.nodes)
    }
    try:
        return [graph.nodes[index] for index in TopologicalSorter(before).static_order()]
    except CycleError as error:
        stuck = graph.nodes[min(error.args[1])]
        message = (
            f"Model must have no cycle; got one through node {quoted(stuck.name or stuck.op_type)}. "
            "Export the model again."
        )
        raise GraphError(message) from error


def restore_batch_normalizations(graph: OnnxGraph) -> tuple[OnnxGraph, int]:
    """Return *graph* with its folded batch normalizations as nodes, and their number."""
    nodes: list[OnnxNode] = []
    statistics: dict[str, OnnxTensor] = {}
    for node in graph.nodes:
        is_convolution = node.op_type == "Conv" and not node.domain and len(node.outputs) == 1
        weight = None
        if is_convolution and len(node.inputs) > _WEIGHT:
            weight = graph.initializers.get(node.inputs[_WEIGHT])
        if weight is None or not weight.shape or not _is_folded(node, weight):
            nodes.append(node)
            continue

        # The bias goes, because the normalization has a shift.
        before = f"{node.outputs[0]}/before_normalization"
        names = [f"{node.outputs[0]}/{name}" for name in _STATISTICS]
        for name in names:
            statistics[name] = OnnxTensor(name, weight.shape[:1], "float")
        nodes.append(replace(node, inputs=node.inputs[:_BIAS], outputs=(before,)))
        nodes.append(OnnxNode(node.name, "BatchNormalization", "", (before, *names), node.outputs, {}))
    restored = replace(graph, nodes=tuple(nodes), initializers={**graph.initializers, **statistics})
    return restored, len(statistics) // len(_STATISTICS)


def _is_folded(convolution: OnnxNode, weight: OnnxTensor) -> bool:
    """Return whether the names show that an exporter multiplied a batch normalization into *weight*."""
    if _MERGED.fullmatch(weight.name) or _NORMALIZED.fullmatch(convolution.outputs[0]):
        return True
    return len(convolution.inputs) > _BIAS and all(map(_NUMBERED.fullmatch, convolution.inputs[_WEIGHT:]))


def split_fused_nodes(graph: OnnxGraph) -> OnnxGraph:
    """Return *graph* with each fused node of ONNX Runtime as the operators that it fuses."""
    nodes: list[OnnxNode] = []
    for node in graph.nodes:
        fused = node
        # A convolution in blocks has another layout of its weight than ONNX's.
        if node.domain == BLOCKED:
            fused = replace(node, domain=RUNTIME, op_type="BlockedConv" if node.op_type == "Conv" else node.op_type)
        split = _SPLITS.get(fused.op_type) if fused.domain == RUNTIME and fused.outputs else None
        if split is None:
            nodes.append(fused)
        else:
            nodes.extend(split(fused, (*fused.inputs, *("",) * _MAXIMUM_INPUTS)))

    return replace(graph, nodes=tuple(nodes))


def _convolution(node: OnnxNode, inputs: tuple[str, ...]) -> Iterator[OnnxNode]:
    """Yield a convolution, the sum with its fourth input, and the activation."""
    # ONNX Runtime adds the fourth input before the activation: a residual block in one node.
    data, weight, bias, summand, *_ = inputs
    out = node.outputs[0]
    op_type = "Conv" if node.op_type == "FusedConv" else node.op_type
    activation = node.attributes.get("activation")
    steps: list[tuple[str, tuple[str, ...], Mapping[str, Attribute]]] = [
        (op_type, (data, weight, bias) if bias else (data, weight), node.attributes)
    ]
    if summand:
        steps.append(("Add", (summand,), {}))
    if isinstance(activation, str) and activation:
        steps.append((activation, (), {}))

    # Each step reads the one before; the last one writes the node's own output.
    names = [f"{out}/{place}" for place in range(1, len(steps))]
    for (kind, others, attributes), (before, after) in zip(steps, pairwise(["", *names, out]), strict=True):
        domain = RUNTIME if kind == "BlockedConv" else ""
        yield OnnxNode(node.name, kind, domain, (before, *others) if before else others, (after,), attributes)


def _channels_last(node: OnnxNode, inputs: tuple[str, ...]) -> Iterator[OnnxNode]:
    """Yield a convolution of images in NHWC layout, between transpositions."""
    out = node.outputs[0]
    # ONNX counts channels first.
    yield OnnxNode(node.name, "Transpose", "", inputs[:1], (f"{out}/data",), _TO_CHANNELS_FIRST)
    yield OnnxNode(node.name, "Transpose", "", inputs[1:2], (f"{out}/weight",), _TO_CHANNELS_FIRST)
    channels_first = replace(node, inputs=(f"{out}/data", f"{out}/weight", *inputs[2:4]), outputs=(f"{out}/turned",))
    yield from _convolution(replace(channels_first, op_type="FusedConv"), (*channels_first.inputs, ""))
    yield OnnxNode(node.name, "Transpose", "", (f"{out}/turned",), (out,), _TO_CHANNELS_LAST)


def _attention(node: OnnxNode, inputs: tuple[str, ...]) -> Iterator[OnnxNode]:
    """Yield the product that computes query, key and value, and the attention that reads them as a single tensor."""
    data, weight, bias, mask, past, *_ = inputs
    product, domain = "MatMul", ""
    # Scales of the quantized operator stand before the mask, its zero points before the past.
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
    """Yield the embeddings of words, positions and segments, their sum, and its normalization."""
    words, segments, word_table, position_table, segment_table, scale, shift, mask, positions = inputs[:9]
    out, lengths, total = (*node.outputs, "", "")[:3]
    # Positions that are left out are as many as the words.
    tables = [(word_table, words), (position_table, positions or words)]
    if segments and segment_table:
        tables.append((segment_table, segments))
    # Without positions of its own an embedding counts from 0; any indices have the words' shape.
    for number, (table, indices) in enumerate(tables):
        yield OnnxNode(node.name, "Gather", "", (table, indices), (f"{out}/{number}",), {})
    sums = [f"{out}/0", *(f"{out}/sum{number}" for number in range(1, len(tables) - 1)), total or f"{out}/sum"]
    for number, (before, after) in enumerate(pairwise(sums), 1):
        yield OnnxNode(node.name, "Add", "", (before, f"{out}/{number}"), (after,), {})
    yield OnnxNode(node.name, "LayerNormalization", "", (sums[-1], scale, shift), (out,), {})
    if lengths:
        yield OnnxNode(node.name, "ReduceSum", "", (mask or words,), (lengths,), {"axes": (1,), "keepdims": 0})


# Most inputs of an operator below; a missing input is ``""``.
_MAXIMUM_INPUTS = 9
_SPLITS: Mapping[str, Callable[[OnnxNode, tuple[str, ...]], Iterator[OnnxNode]]] = {
    **dict.fromkeys(("FusedConv", "BlockedConv"), _convolution),
    **dict.fromkeys(("NhwcConv", "NhwcFusedConv"), _channels_last),
    **dict.fromkeys(("Attention", "QAttention"), _attention),
    "EmbedLayerNormalization": _embedding,
}


FusedNode = tuple[Node, tuple[int, ...]]
"""The node that replaces the last node of a pattern, and the producers of its inputs."""


@dataclass(frozen=True, slots=True)
class Dataflow:
    """The nodes, and the producers of their inputs."""

    nodes: Sequence[Node]
    producers: Sequence[tuple[int, ...]]

    def producer(self, index: int, op_types: Sequence[str], input_count: int = 1, place: int = 0) -> int:
        """Return the producer of input *place* of a node; -1 unless of *op_types* and with *input_count* inputs."""
        # -1 goes through a chain of calls, so a pattern reads as one expression.
        producer = self.producers[index][place] if index >= 0 and place < len(self.producers[index]) else -1
        matches = (
            producer >= 0 and self.nodes[producer].op_type in op_types and len(self.producers[producer]) == input_count
        )
        return producer if matches else -1

    def source(self, index: int) -> int | None:
        """Return the producer of the first input of node *index*; ``None`` without such a node."""
        return self.producers[index][0] if index >= 0 and self.producers[index] else None


def fuse_patterns(run: ModelRun) -> ModelRun:
    """Return *run* with the last node of each known pattern replaced by the operator that the pattern computes.

    The other nodes of the pattern stay, but no node reads them, and `without_dead_nodes` removes them.
    """
    # Later patterns see earlier replacements, for they read these lists.
    nodes, producers = list(run.nodes), list(run.producers)
    flow = Dataflow(nodes, producers)
    for index, node in enumerate(run.nodes):
        for pattern in _PATTERNS.get(node.op_type, ()):
            fused = pattern(flow, index)
            if fused is not None:
                # `flow` reads the same lists, so later patterns may contain the new node.
                nodes[index], producers[index] = fused
                break

    return replace(run, nodes=tuple(nodes), producers=tuple(producers))


def _gate(flow: Dataflow, index: int) -> FusedNode | None:
    """Match x * sigmoid(x) and x * hardsigmoid(x): PyTorch's silu and hardswish."""
    for gate, other in _operand_orders(flow, index):
        gate_node = flow.producer(index, tuple(_GATES), place=gate)
        if gate_node >= 0 and flow.source(gate_node) == flow.producers[index][other]:
            return _unary_node(flow, index, other, _GATES[flow.nodes[gate_node].op_type])
    return None


def _gelu(flow: Dataflow, index: int) -> FusedNode | None:
    """Match x * (1 + erf(x / sqrt 2)) / 2, with the half before, between or after; Gelu is new in operator set 20."""
    # A last node with one activation is the product with the constant half.
    halved = len(flow.producers[index]) != 1
    product = index if halved else flow.producer(index, ("Mul",), input_count=_PAIR)
    if product < 0:
        return None

    for sum_, other in _operand_orders(flow, product):
        scaled = flow.producer(flow.producer(flow.producer(product, ("Add",), place=sum_), ("Erf",)), ("Mul", "Div"))
        start = flow.source(scaled)
        if start is None:
            continue
        if not halved and flow.producers[product][other] == start:
            return _unary_node(flow, index, 0, "Gelu", start)
        half = flow.producer(product, ("Mul", "Div"), place=other)
        if halved and flow.source(half) == start:
            return _unary_node(flow, index, 0, "Gelu", start)

    return None


def _layer_normalization(flow: Dataflow, index: int) -> FusedNode | None:
    """Match (x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + shift; LayerNormalization is new in set 17."""
    shift = flow.nodes[index]
    scale = flow.producer(index, ("Mul",))
    quotient = flow.producer(scale, ("Div",), input_count=_PAIR)
    if quotient < 0 or len(shift.parameters) != 1 or len(flow.nodes[scale].parameters) != 1:
        return None

    # The same difference stands in the quotient and, squared, in the variance; exporters may write it twice.
    centred = flow.producer(quotient, ("Sub",), input_count=_PAIR)
    start = flow.source(centred)
    variance = flow.producer(flow.producer(quotient, ("Sqrt",), place=1), ("Add",))
    mean_square = flow.producer(variance, ("ReduceMean",))
    square = flow.producer(mean_square, ("Pow", "Mul"))
    if square < 0:  # a product of the difference with itself has two inputs
        square = flow.producer(mean_square, ("Mul",), input_count=_PAIR)
    again = flow.producer(square, ("Sub",), input_count=_PAIR)
    mean = flow.producer(centred, ("ReduceMean",), place=1)
    if start is None or flow.source(again) != start or flow.source(mean) != start:
        return None

    parameters = (*flow.nodes[scale].parameters, *shift.parameters)
    node = replace(
        shift,
        op_type="LayerNormalization",
        inputs=flow.nodes[centred].inputs[:1],
        parameters=parameters,
        attributes=(("axis", -len(parameters[0])),),
    )
    return node, (start,)


def _unary_node(flow: Dataflow, index: int, place: int, op_type: str, start: int | None = None) -> FusedNode:
    """Return node *index* as an *op_type* with a single input of the output's shape."""
    node = flow.nodes[index]
    source = flow.producers[index][place] if start is None else start
    return replace(node, op_type=op_type, inputs=node.outputs[:1], parameters=(), attributes=()), (source,)


def _operand_orders(flow: Dataflow, index: int) -> Iterator[tuple[int, int]]:
    """Yield the indices of a node's two inputs in both orders."""
    if len(flow.producers[index]) == _PAIR:
        yield 0, 1
        yield 1, 0


_PATTERNS: dict[str, tuple[Callable[[Dataflow, int], FusedNode | None], ...]] = {
    "Mul": (_gate, _gelu),
    "Add": (_layer_normalization,),
}
