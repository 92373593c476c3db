"""What a graph's edges say: equal nodes counted once, shared storage, when each tensor is read last.

Under automatic mixed precision (`with_autocast`) products and convolutions write 2 bytes; layer normalization, softmax
and the like write 4; everything else writes as wide as the widest of what it reads, weights included.

Invariants:

1. Nothing here depends on the batch, the precision or the mode.
2. Arrays have one entry per node or one per edge, in the graph's order, so that later steps need no loop over nodes.

Source:
    PyTorch's list of operators that autocast to float16, to float32, and to the widest input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from gpusage.predictors.arrays import BoolArray, IntArray
from gpusage.predictors.work.layouts import PLAIN_LAYOUTS, layouts_of
from gpusage.predictors.work.operators import (
    CLASS_OF_NUMBER,
    NORMALIZATIONS_IN_HALF,
    OperatorClass,
    operator_numbers,
    rule_of,
)
from gpusage_hooks.types import ModelGraph, Node

# PyTorch's fused attentions take batch, heads, length and width; tensors of more or fewer sizes go another way.
_FUSED_RANK = 4
# Of sequences of vectors: batch, length and width.
_SEQUENCES_RANK = 3
# An integer tensor this small is a shape, which PyTorch works out on the host.
_SHAPE_ELEMENTS = 64


class Role(IntEnum):
    """What a node really does, which its operator alone does not say."""

    PLAIN = 0
    SCORES = 1
    """The product before a softmax inside a fused attention: its result never reaches memory."""
    INSIDE = 2
    """The mask or the softmax inside a fused attention."""
    VALUES = 3
    """The product after the softmax inside a fused attention."""
    COPY = 4
    """A reshape of a transposed view, or a transposed sequence that a product reads: it has to be copied first."""
    BIAS = 5
    """The bias of a product, which is added as the product is written."""
    HOST = 6
    """Arithmetic on shapes."""
    UNFUSED = 7
    """Part of an attention that no fused kernel takes: PyTorch computes it step by step, in fp32."""
    INTERPOLATION = 8
    """An interpolation of channels that lie one after the other: PyTorch has one thread for a pixel of all of them."""
    NON_CONTIGUOUS = 9
    """Reads a tensor that lies in another order than it needs: it copies it first, or reads it as slowly."""
    CHANNELS_LAST = 10
    """A convolution of channels that lie side by side: nothing is turned before and after it."""
    SEPARATE_BIAS = 11
    """The bias of a product that read a turned sequence, as so many small ones: a kernel of its own adds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """The arrays; nodes are of one kind where they are equal in everything that counts.

    Attributes:
        kinds: One node of each kind.
        operators: Their `operator_number`s.
        roles: Their `Role`s.
        stays_fp32: Of which kinds mixed precision writes the output in 4 bytes; see the module.
        fp32_inputs: Which inputs of each kind it leaves in 4 bytes; empty where it leaves none.
        kind_of_node: Index into *kinds*, one entry per node.
        counts: How often each kind occurs.
        root_of_node: The node whose storage this node's output lives in, itself where it has its own; ``-1`` for a
            view of a model input or of a weight.
        sources: Root of the producer, one entry per edge; edges from model inputs are left out.
        destinations: Index of the reader, one entry per edge.
        last_reader: Index of the last node that reads a node's storage, its own where none does.
        output_nodes: Nodes whose output nobody reads: the model's outputs.
    """

    kinds: tuple[Node, ...]
    operators: IntArray
    roles: IntArray
    stays_fp32: BoolArray
    kind_of_node: IntArray
    counts: IntArray
    root_of_node: IntArray
    sources: IntArray
    destinations: IntArray
    last_reader: IntArray
    output_nodes: IntArray
    fp32_inputs: tuple[tuple[bool, ...], ...] = ()


_HOST_TYPES = ("int64", "int32", "bool")
_IS_VIEW = CLASS_OF_NUMBER == OperatorClass.VIEW
_IS_VIEW_BY_ROLE = np.array([role in (Role.HOST, Role.BIAS) for role in Role])


def analyze_structure(graph: ModelGraph) -> Structure:
    """Return the structure of *graph*."""
    # One entry per edge; an edge from a model input has no maker.
    node_count = len(graph.nodes)
    lengths = np.fromiter(map(len, graph.producers), dtype=np.int64, count=node_count)
    producers = np.fromiter(chain.from_iterable(graph.producers), dtype=np.int64, count=int(lengths.sum()))
    destinations = np.repeat(np.arange(node_count), lengths)
    inside = producers >= 0
    makers, destinations = producers[inside], destinations[inside]
    read_count = np.bincount(makers, minlength=node_count)

    kinds, roles, kind_of_node = _kinds(graph.nodes, _roles(graph, read_count))
    operators = operator_numbers(kinds)

    # The owner of a view's storage is where the view starts; a view of an input or of a weight has none.
    is_view = _IS_VIEW[operators] & (roles == 0) | _IS_VIEW_BY_ROLE[roles]
    owners = list(range(node_count))
    for index in is_view[kind_of_node].nonzero()[0].tolist():
        sources_of_view = graph.producers[index]
        owners[index] = owners[sources_of_view[0]] if sources_of_view and sources_of_view[0] >= 0 else -1
    roots = np.array(owners, dtype=np.int64)

    sources = roots[makers]
    stored = sources >= 0
    sources, destinations = sources[stored], destinations[stored]
    last_reader = np.arange(node_count)
    np.maximum.at(last_reader, sources, destinations)
    return Structure(
        kinds=kinds,
        operators=operators,
        roles=roles,
        stays_fp32=np.zeros(len(kinds), dtype=bool),
        kind_of_node=kind_of_node,
        counts=np.bincount(kind_of_node, minlength=len(kinds)),
        root_of_node=roots,
        sources=sources,
        destinations=destinations,
        last_reader=last_reader,
        output_nodes=(read_count == 0).nonzero()[0],
    )


def _kinds(nodes: tuple[Node, ...], roles: dict[int, Role]) -> tuple[tuple[Node, ...], IntArray, IntArray]:
    """Return a node of each kind, each kind's role, and each node's kind.

    Readers make equal nodes one object; where no two nodes are one object they are compared by value, which is slower.
    """
    keys: list[Any] = list(map(id, nodes))
    if len(set(keys)) == len(nodes):
        keys = list(nodes)
    for index, role in roles.items():
        keys[index] = (keys[index], int(role))

    kinds = dict(zip(keys, nodes, strict=True))
    numbers = dict(zip(kinds, range(len(kinds)), strict=True))
    kind_of_node = np.fromiter(map(numbers.__getitem__, keys), dtype=np.int64, count=len(keys))

    # Small integer tensors are shapes, which PyTorch works out on the host; a role by neighbours goes first.
    kind_roles = [0] * len(kinds)
    for number, node in enumerate(kinds.values()):
        if node.element_type in _HOST_TYPES and all(
            len(shape) <= 1 and all(0 <= size <= _SHAPE_ELEMENTS for size in shape) for shape in node.outputs
        ):
            kind_roles[number] = int(Role.HOST)
    for index, role in roles.items():
        kind_roles[numbers[keys[index]]] = int(role)
    return tuple(kinds.values()), np.array(kind_roles, dtype=np.int64), kind_of_node


def _roles(graph: ModelGraph, read_count: IntArray) -> dict[int, Role]:
    """Return the roles that the neighbours decide; a node that is not here has a plain one."""
    # Without a transpose, all tensors lie in plain order.
    layouts = layouts_of(graph) if any(node.op_type == "Transpose" for node in graph.nodes) else PLAIN_LAYOUTS
    roles = dict.fromkeys(layouts.non_contiguous, Role.NON_CONTIGUOUS) | dict.fromkeys(
        layouts.channels_last, Role.CHANNELS_LAST
    )

    softmaxes: list[int] = []
    products: list[int] = []
    for index, node in enumerate(graph.nodes):
        if node.op_type == "Softmax":
            softmaxes.append(index)
        elif node.op_type == "MatMul" and not node.parameters:
            products.append(index)
        elif node.op_type in _NEIGHBOUR_RULES:
            decided, role = _NEIGHBOUR_RULES[node.op_type](graph, index, node)
            if role:
                roles[decided] = role
            # A product of a turned sequence runs as so many small ones, which add no bias as they write.
            if role is Role.BIAS and graph.producers[index][0] in layouts.non_contiguous:
                roles[decided] = Role.SEPARATE_BIAS
    return {**roles, **_attention_roles(graph, read_count, softmaxes, products)} if softmaxes else roles


def _reshape_role(graph: ModelGraph, index: int, _: Node) -> tuple[int, Role]:
    return index, Role.COPY if _producer_type(graph, index) == "Transpose" else Role.PLAIN


def _sum_role(graph: ModelGraph, index: int, node: Node) -> tuple[int, Role]:
    """Return the role of a sum: the bias of the product before it, or a sum of its own."""
    others = node.inputs[1:]
    if len(others) + len(node.parameters) != 1 or len((others or node.parameters)[0]) != 1:
        return index, Role.PLAIN
    is_bias = _producer_type(graph, index) == "MatMul" and graph.nodes[graph.producers[index][0]].parameters
    return index, Role.BIAS if is_bias else Role.PLAIN


def _product_role(graph: ModelGraph, index: int, node: Node) -> tuple[int, Role]:
    """Return the role of what a product with a weight reads: sequences that were turned into channels are copied."""
    is_turned = _producer_type(graph, index) == "Transpose" and len(node.inputs[0]) == _SEQUENCES_RANK
    return (graph.producers[index][0], Role.COPY) if is_turned else (index, Role.PLAIN)


def _resize_role(graph: ModelGraph, index: int, node: Node) -> tuple[int, Role]:
    """Return the role of an interpolation; what was made of a sequence of vectors has its channels side by side."""
    is_interpolated = ("mode", "linear") in node.attributes or ("mode", "cubic") in node.attributes
    is_by_pixels = is_interpolated and _producer_type(graph, index) not in ("Reshape", "Transpose")
    return index, Role.INTERPOLATION if is_by_pixels and node.outputs else Role.PLAIN


# By operator: the node that a neighbour decides on, and its role.
_NEIGHBOUR_RULES: Mapping[str, Callable[[ModelGraph, int, Node], tuple[int, Role]]] = {
    "Reshape": _reshape_role,
    "Add": _sum_role,
    "MatMul": _product_role,
    "Resize": _resize_role,
}


def _producer_type(graph: ModelGraph, index: int) -> str:
    producers = graph.producers[index]
    return graph.nodes[producers[0]].op_type if producers and producers[0] >= 0 else ""


def _attention_roles(
    graph: ModelGraph, read_count: IntArray, softmaxes: list[int], products: list[int]
) -> dict[int, Role]:
    """Return the roles inside fused attentions.

    PyTorch's exporter writes ``scaled_dot_product_attention`` as product, mask, softmax, product, with the scale on
    query and key, our reader of modules with none; where the scale is on the scores, or on the query alone just before
    its product, the model's own code computes them, and they reach memory.
    """
    readers = {graph.producers[index][0]: index for index in products if graph.producers[index]}
    roles: dict[int, Role] = {}
    for softmax in softmaxes:
        path = [softmax]
        if _producer_type(graph, softmax) == "Add":  # a mask
            path.append(graph.producers[softmax][0])
        if _producer_type(graph, path[-1]) != "MatMul" or softmax not in readers:
            continue

        scores = graph.producers[path[-1]][0]
        alone = all(read_count[index] == 1 for index in (*path, scores))
        if not alone or graph.nodes[scores].parameters or _is_scaled_query(graph, scores):
            continue

        if len(graph.nodes[softmax].outputs[0]) != _FUSED_RANK:
            roles.update(dict.fromkeys((*path, scores, readers[softmax]), Role.UNFUSED))
        else:
            roles.update(dict.fromkeys(path, Role.INSIDE))
            roles[scores] = Role.SCORES
            roles[readers[softmax]] = Role.VALUES
    return roles


def _is_scaled_query(graph: ModelGraph, scores: int) -> bool:
    """Return whether the first factor of *scores* is a tensor times a number, and the second one is not."""
    query, key, *_ = (*graph.producers[scores], -1, -1)
    if key >= 0 and graph.nodes[key].op_type == "Transpose":
        key = graph.producers[key][0] if graph.producers[key] else -1

    def is_scaled(index: int) -> bool:
        if index < 0:
            return False
        node = graph.nodes[index]
        is_factor = node.op_type in ("Mul", "Div") and len(node.inputs) == 1 and len(node.parameters) <= 1
        return is_factor and all(prod(weight) <= 1 for weight in node.parameters)

    return is_scaled(query) and not is_scaled(key)


def with_autocast(graph: ModelGraph, structure: Structure) -> Structure:
    """Return the *structure* of *graph* with one kind for each choice of tensors that stay in fp32."""
    wide: list[bool] = []  # of each node, whether its output stays in fp32
    numbers: dict[tuple[int, bool, tuple[bool, ...]], int] = {}
    kind_of_node = []
    rules = [_autocast_rule(node, role) for node, role in zip(structure.kinds, structure.roles.tolist(), strict=True)]
    for number, producers in zip(structure.kind_of_node.tolist(), graph.producers, strict=True):
        inputs = tuple([producer < 0 or wide[producer] for producer in producers])
        rule = rules[number]
        result = rule is _AutocastRule.ALWAYS or (rule is _AutocastRule.AS_READ and True in inputs)
        wide.append(result)
        kind_of_node.append(numbers.setdefault((number, result, inputs), len(numbers)))

    column = np.array(kind_of_node, dtype=np.int64)
    before = [number for number, _, _ in numbers]
    return replace(
        structure,
        kinds=tuple([structure.kinds[number] for number in before]),
        operators=structure.operators[before],
        roles=structure.roles[before],
        stays_fp32=np.array([result for _, result, _ in numbers], dtype=bool),
        fp32_inputs=tuple([inputs for _, _, inputs in numbers]),
        kind_of_node=column,
        counts=np.bincount(column, minlength=len(numbers)).astype(np.int64),
    )


class _AutocastRule(IntEnum):
    """Whether mixed precision writes a kind's output in 4 bytes."""

    NEVER = 0
    ALWAYS = 1
    AS_READ = 2


def _autocast_rule(node: Node, role: int) -> _AutocastRule:
    operator_class = rule_of(node).operator_class
    if role == Role.UNFUSED:
        return _AutocastRule.ALWAYS
    if (
        role in (Role.SCORES, Role.INSIDE, Role.VALUES, Role.BIAS, Role.SEPARATE_BIAS)
        or operator_class in _NARROW_CLASSES
    ):
        return _AutocastRule.NEVER

    if operator_class is OperatorClass.NORMALIZATION:
        return _AutocastRule.NEVER if node.op_type in NORMALIZATIONS_IN_HALF else _AutocastRule.ALWAYS
    if node.op_type in _WIDE_TYPES:
        return _AutocastRule.ALWAYS

    # Weights have 4 bytes, and a sum with one is as wide as the widest; a lookup writes its table's numbers.
    promotes = operator_class is OperatorClass.ELEMENTWISE or node.op_type == "Concat"
    if (promotes or operator_class is OperatorClass.GATHER) and any(node.parameters):
        return _AutocastRule.ALWAYS
    return _AutocastRule.AS_READ


_NARROW_CLASSES = (OperatorClass.CONVOLUTION, OperatorClass.PRODUCT, OperatorClass.ATTENTION, OperatorClass.RECURRENT)
_WIDE_TYPES = ("Softmax", "LogSoftmax", "Exp", "Log", "Pow", "Reciprocal", "Softplus", "CumSum", "ReduceL2")
