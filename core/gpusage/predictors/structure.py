"""What a graph's edges say: equal nodes counted once, shared storage, when each tensor is read last.

Invariants:

1. Nothing here depends on the batch, the precision or the mode.
2. Arrays have one entry a node or one an edge, in the graph's order, so that later steps need no loop over nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from itertools import chain

import numpy as np
import numpy.typing as npt

from gpusage.predictors.identity import Identity
from gpusage.predictors.operators import OperatorClass, rule_of
from gpusage_hooks.types import ModelGraph, Node

IntArray = npt.NDArray[np.int64]
_FUSED_RANK = 4
"""PyTorch's fused attentions take batch, heads, length and width; tensors of more sizes go another way."""
_SHAPE_ELEMENTS = 64
"""An integer tensor this small is a shape, which PyTorch works out on the host."""


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
    """A reshape of a transposed view, which has to copy."""
    BIAS = 5
    """The bias of a product, which is added as the product is written."""
    HOST = 6
    """Arithmetic on shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Nodes that are equal in everything that counts."""

    node: Node
    role: Role
    wide: bool = False
    """Mixed precision writes it in 4 bytes: see `widened`."""
    wide_inputs: tuple[bool, ...] = ()
    """Which of the inputs are so; empty where none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """The arrays.

    Attributes:
        kind_of_node: Index into *kinds*, one entry a node.
        counts: How often each kind occurs.
        root_of_node: The node whose storage this node's output lives in, itself where it has its own; ``-1`` for a
            view of a model input or of a weight.
        sources: Root of the producer, one entry an edge; edges from model inputs are left out.
        destinations: Index of the reader, one entry an edge.
        last_reader: Index of the last node that reads a node's storage, its own where none does.
        unread: Nodes whose output nobody reads: the model's outputs.
    """

    kinds: tuple[Kind, ...]
    kind_of_node: IntArray
    counts: IntArray
    root_of_node: IntArray
    sources: IntArray
    destinations: IntArray
    last_reader: IntArray
    unread: IntArray


def structure_of(graph: ModelGraph) -> Structure:
    """Return the structure of *graph*, worked out once for each graph."""
    return _structure(Identity(graph))


@lru_cache(maxsize=512)
def _structure(identity: Identity[ModelGraph]) -> Structure:
    graph = identity.value
    node_count = len(graph.nodes)
    lengths = np.fromiter(map(len, graph.producers), dtype=np.int64, count=node_count)
    producers = np.fromiter(chain.from_iterable(graph.producers), dtype=np.int64, count=int(lengths.sum()))
    destinations = np.repeat(np.arange(node_count), lengths)
    roles = _roles(graph, producers)
    kinds, kind_of_node = _kinds(graph.nodes, roles)
    roots = _roots(graph, kinds, kind_of_node)
    inside = producers >= 0
    sources = roots[producers[inside]]
    destinations = destinations[inside]
    stored = sources >= 0
    last_reader = np.arange(node_count)
    np.maximum.at(last_reader, sources[stored], destinations[stored])
    read_count = np.bincount(producers[inside], minlength=node_count)
    return Structure(
        kinds=kinds,
        kind_of_node=kind_of_node,
        counts=np.bincount(kind_of_node, minlength=len(kinds)),
        root_of_node=roots,
        sources=sources[stored],
        destinations=destinations[stored],
        last_reader=last_reader,
        unread=np.flatnonzero(read_count == 0),
    )


def widened(graph: ModelGraph) -> Structure:
    """Return the structure of *graph* under automatic mixed precision, where a kind knows which tensors stay in fp32.

    Products and convolutions write 2 bytes; layer normalization, softmax and the like write 4; everything else writes
    as wide as the widest of what it reads, weights included.

    Source:
        PyTorch's list of operators that autocast to float16, to float32, and to the widest input.
    """
    return _widened(Identity(graph))


@lru_cache(maxsize=512)
def _widened(identity: Identity[ModelGraph]) -> Structure:
    graph = identity.value
    structure = structure_of(graph)
    wide: list[bool] = []
    numbers: dict[tuple[int, bool, tuple[bool, ...]], int] = {}
    kind_of_node = []
    rules = [_Widening.of(kind) for kind in structure.kinds]
    for number, producers in zip(structure.kind_of_node.tolist(), graph.producers, strict=True):
        inputs = tuple([made < 0 or wide[made] for made in producers])
        rule = rules[number]
        result = rule is _Widening.ALWAYS or (rule is _Widening.AS_READ and True in inputs)
        wide.append(result)
        key = (number, result, inputs if True in inputs else ())
        kind_of_node.append(numbers.setdefault(key, len(numbers)))
    kinds = tuple(
        Kind(node=structure.kinds[number].node, role=structure.kinds[number].role, wide=result, wide_inputs=inputs)
        for number, result, inputs in numbers
    )
    column = np.array(kind_of_node, dtype=np.int64)
    return replace(
        structure, kinds=kinds, kind_of_node=column, counts=np.bincount(column, minlength=len(kinds)).astype(np.int64)
    )


class _Widening(IntEnum):
    """Whether mixed precision writes a kind's output in 4 bytes."""

    NEVER = 0
    ALWAYS = 1
    AS_READ = 2

    @classmethod
    def of(cls, kind: Kind) -> _Widening:
        node, operator_class = kind.node, rule_of(kind.node).operator_class
        if kind.role in (Role.SCORES, Role.INSIDE, Role.VALUES, Role.BIAS) or operator_class in _NARROW_CLASSES:
            return cls.NEVER
        if operator_class is OperatorClass.NORMALIZATION or node.op_type in _WIDE_TYPES:
            return cls.ALWAYS
        promotes = operator_class is OperatorClass.ELEMENTWISE or node.op_type == "Concat"
        if (promotes or operator_class is OperatorClass.GATHER) and any(node.parameters):
            return cls.ALWAYS
        return cls.AS_READ


_NARROW_CLASSES = (
    OperatorClass.CONVOLUTION,
    OperatorClass.PRODUCT,
    OperatorClass.ATTENTION,
    OperatorClass.RECURRENT,
)
_WIDE_TYPES = ("Softmax", "LogSoftmax", "Exp", "Log", "Pow", "Reciprocal", "Softplus", "CumSum", "ReduceL2")


def _kinds(nodes: tuple[Node, ...], roles: dict[int, Role]) -> tuple[tuple[Kind, ...], IntArray]:
    """Return the kinds and each node's.

    Readers make equal nodes one object; where no two nodes are one object they are compared by value, which is slower.
    """
    shared = len(set(map(id, nodes))) < len(nodes)
    by_value: dict[Node | tuple[Node, int], int] = {}
    by_identity: dict[int | tuple[int, int], int] = {}
    kinds: list[Kind] = []
    numbers = []
    for index, node in enumerate(nodes):
        role = roles.get(index)
        key = id(node) if role is None else (id(node), role.value)
        number = by_identity.get(key)
        if number is None:
            by_identity[key] = number = (
                len(kinds) if shared else by_value.setdefault(node if role is None else (node, role.value), len(kinds))
            )
            if number == len(kinds):
                kinds.append(Kind(node=node, role=role or _plain_role(node)))
        numbers.append(number)
    return tuple(kinds), np.array(numbers, dtype=np.int64)


def _plain_role(node: Node) -> Role:
    return Role.HOST if _is_host_arithmetic(node) else Role.PLAIN


def _is_host_arithmetic(node: Node) -> bool:
    if node.element_type not in ("int64", "int32", "bool"):
        return False
    return all(len(shape) <= 1 and all(0 <= size <= _SHAPE_ELEMENTS for size in shape) for shape in node.outputs)


def _roots(graph: ModelGraph, kinds: tuple[Kind, ...], kind_of_node: IntArray) -> IntArray:
    """Return whose storage each node's output lives in, views followed to their start."""
    views = np.array([_is_view(kind) for kind in kinds], dtype=bool)[kind_of_node]
    roots = np.arange(len(kind_of_node))
    for index in np.flatnonzero(views).tolist():
        producers = graph.producers[index]
        first = producers[0] if producers else -1
        roots[index] = roots[first] if first >= 0 else -1
    return roots


def _is_view(kind: Kind) -> bool:
    return kind.role in (Role.HOST, Role.BIAS) or (
        kind.role is Role.PLAIN and rule_of(kind.node).operator_class is OperatorClass.VIEW
    )


def _roles(graph: ModelGraph, producers: IntArray) -> dict[int, Role]:
    """Return the roles that the neighbours decide; a node that is not here has a plain one."""
    roles: dict[int, Role] = {}
    softmaxes: list[int] = []
    for index, node in enumerate(graph.nodes):
        op_type = node.op_type
        if op_type == "Reshape":
            if _producer_type(graph, index) == "Transpose":
                roles[index] = Role.COPY
        elif op_type == "Add":
            if _is_bias(graph, index, node):
                roles[index] = Role.BIAS
        elif op_type == "Softmax":
            softmaxes.append(index)
    return {**roles, **_attention_roles(graph, producers, softmaxes)} if softmaxes else roles


def _is_bias(graph: ModelGraph, index: int, node: Node) -> bool:
    if len(node.inputs) != 1 or len(node.parameters) != 1 or len(node.parameters[0]) != 1:
        return False
    return _producer_type(graph, index) == "MatMul" and bool(graph.nodes[graph.producers[index][0]].parameters)


def _producer_type(graph: ModelGraph, index: int) -> str:
    producers = graph.producers[index]
    return graph.nodes[producers[0]].op_type if producers and producers[0] >= 0 else ""


def _attention_roles(graph: ModelGraph, producers: IntArray, softmaxes: list[int]) -> dict[int, Role]:
    """Return the roles inside fused attentions.

    PyTorch's exporter writes ``scaled_dot_product_attention`` as product, mask, softmax, product, with the scale on
    query and key; where the scale is on the scores the model's own code computes them, and they reach memory.
    """
    read_count = np.bincount(producers[producers >= 0], minlength=len(graph.nodes))
    readers = {
        source: index
        for index, sources in enumerate(graph.producers)
        if graph.nodes[index].op_type == "MatMul" and not graph.nodes[index].parameters
        for source in sources[:1]
    }
    roles: dict[int, Role] = {}
    for softmax in softmaxes:
        path = [softmax]
        if _producer_type(graph, softmax) == "Add":
            path.append(graph.producers[softmax][0])
        if _producer_type(graph, path[-1]) != "MatMul" or softmax not in readers:
            continue
        scores = graph.producers[path[-1]][0]
        alone = all(read_count[index] == 1 for index in (*path, scores))
        fits = len(graph.nodes[softmax].outputs[0]) <= _FUSED_RANK
        if alone and fits and not graph.nodes[scores].parameters:
            roles.update(dict.fromkeys(path, Role.INSIDE))
            roles[scores] = Role.SCORES
            roles[readers[softmax]] = Role.VALUES
    return roles
