"""A run of an ONNX model on shapes alone: every operator in turn, with whole numbers for every size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from gpusage.graphs.guard import MAXIMUM_NODES, check_shape, fits, printable, shown
from gpusage.graphs.onnx.dimensions import evaluate
from gpusage.graphs.onnx.file import (
    MAXIMUM_DEPTH,
    Attribute,
    OnnxGraph,
    OnnxModel,
    OnnxNode,
    Reference,
    subgraph,
)
from gpusage.graphs.onnx.loops import Turns, loop_turns, scan_turns
from gpusage.graphs.onnx.protobuf import Message, Span
from gpusage.graphs.onnx.shapes import RULES, Call, MismatchError, Result, UnresolvedError, Value
from gpusage.graphs.onnx.tensors import Declared, OnnxTensor
from gpusage.graphs.onnx.unfused import unfused
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Shape

MAXIMUM_STEPS_OF_LOOPS = 12_000
"""In all turns of all loops together; a longer loop would take a job's submission too long to read."""
DOMAINS = ("", "com.microsoft")
"""Whose operators the rules describe: ONNX's own, and ONNX Runtime's."""

_WEIGHTS = ("float", "int8")
_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
"""Operators on floats whose weights are most of what models have."""
_PACKED = ("MatMulNBits", "MatMulBnb4")
_NORMALIZED_FIGURES = {"BatchNormalization": slice(3, 5)}
"""Inputs that a layer keeps but does not train."""


class InferenceError(Exception):
    """Say which node's inputs do not fit it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operator as it ran.

    Attributes:
        known: A rule described it, from shapes that are certain.
    """

    op_type: str
    attributes: Mapping[str, Attribute]
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    known: bool


@dataclass(slots=True)
class Trace:
    """A whole run: its inputs, its steps, its results, the weights it read, and those that products read as floats."""

    inputs: tuple[tuple[str, Shape], ...] = ()
    steps: list[Step] = field(default_factory=list)
    outputs: tuple[Value, ...] = ()
    weight_counts: dict[str, int] = field(default_factory=dict)
    float_products: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Scope:
    """The names that a graph's nodes see: its own, then those of the graph around it."""

    values: dict[str, Value]
    declared: Mapping[str, Declared]
    parent: _Scope | None = None
    depth: int = 0

    def find(self, name: str) -> Value | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        return None


def infer(model: OnnxModel, inputs: Mapping[str, Shape], symbols: Mapping[str, int]) -> Trace:
    """Return what happens in *model* when its inputs have the shapes *inputs*.

    Args:
        model: As the file has it.
        inputs: The shape of every input.
        symbols: The value of each dimension that the file names.

    Raises:
        InferenceError: The shapes do not fit an operator.
        GraphError: The graph has a cycle, an undefined name, or is beyond the limits.
    """
    return _Run(model, symbols).run(inputs)


class _Run:
    """One run of one model."""

    def __init__(self, model: OnnxModel, symbols: Mapping[str, int]) -> None:
        self._model = model
        self._symbols = symbols
        self._trace = Trace()
        self._bodies: dict[Message, OnnxGraph] = {}
        self._looped = 0

    def run(self, inputs: Mapping[str, Shape]) -> Trace:
        graph = self._model.graph
        values = {
            one.name: Value(inputs[one.name], one.element_type, origin=-1 - index)
            for index, one in enumerate(graph.inputs)
        }
        self._trace.inputs = tuple((printable(one.name), inputs[one.name]) for one in graph.inputs)
        self._trace.outputs = self._graph(graph, _Scope(values, graph.declared))
        return self._trace

    def _graph(self, graph: OnnxGraph, scope: _Scope) -> tuple[Value, ...]:
        for name, tensor in graph.initializers.items():
            scope.values.setdefault(name, _held(tensor))
        for node in sorted_nodes(graph):
            outputs = self._node(node, scope)
            scope.values.update(zip(node.outputs, outputs, strict=False))
        return tuple(self._found(scope, one.name, graph.name) for one in graph.outputs)

    def _node(self, node: OnnxNode, scope: _Scope) -> list[Value]:
        inputs = tuple(self._found(scope, name, node.name) if name else None for name in node.inputs)
        function = self._model.functions.get((node.domain, node.op_type))
        if scope.depth >= MAXIMUM_DEPTH or len(self._trace.steps) >= MAXIMUM_NODES:
            message = (
                f"Model must run in at most {MAXIMUM_NODES} steps, {MAXIMUM_DEPTH} graphs deep; "
                f"node {shown(node.name or node.op_type)} goes further. Simplify the graph."
            )
            raise GraphError(message)
        if function is not None:
            return self._function(function, node, inputs, scope)
        if node.op_type == "If" and not node.domain:
            return self._branch(node, inputs, scope)
        if node.op_type in {"Loop", "Scan"} and not node.domain:
            return self._repeated(node, inputs, scope)
        self._weigh(node, inputs)
        return self._operator(node, inputs, scope)

    def _function(
        self, function: OnnxGraph, node: OnnxNode, inputs: tuple[Value | None, ...], scope: _Scope
    ) -> list[Value]:
        """Run a function of the file as if its nodes stood in place of the call."""
        names = (one.name for one in function.inputs)
        values = {name: value for name, value in zip(names, inputs, strict=False) if value is not None}
        bound = replace(function, nodes=tuple(_bound(inner, node.attributes) for inner in function.nodes))
        return list(self._graph(bound, _Scope(values, {}, depth=scope.depth + 1)))

    def _branch(self, node: OnnxNode, inputs: tuple[Value | None, ...], scope: _Scope) -> list[Value]:
        """Run the branch that is taken; where that depends on what a user feeds in, the longer one."""
        branches = [self._body(node, name) for name in ("then_branch", "else_branch")]
        known = inputs[0].numbers if inputs and inputs[0] else None
        graphs = [branch for branch in branches if branch is not None]
        if len(graphs) != len(branches):
            raise _misfit(node, inputs)
        chosen = graphs[0 if known[0] else 1] if known else max(graphs, key=lambda graph: len(graph.nodes))
        return list(self._graph(chosen, _Scope({}, chosen.declared, scope, scope.depth + 1)))

    def _repeated(self, node: OnnxNode, inputs: tuple[Value | None, ...], scope: _Scope) -> list[Value]:
        """Run a loop as often as it turns; where that is not known, or very often, count it as one unknown operator."""
        body = self._body(node, "body")
        if body is None:
            raise _misfit(node, inputs)
        start = len(self._trace.steps)
        turns = loop_turns(node, inputs) if node.op_type == "Loop" else scan_turns(node, inputs, body)
        if turns is not None and len(body.outputs) < len(turns.state):
            raise _misfit(node, inputs)
        results = None if turns is None else self._turned(body, turns, scope)
        if results is None:
            del self._trace.steps[start:]
            outer = (scope.find(name) for name in self._names_from_outside(body))
            read = (*inputs, *(value for value in outer if value is not None))
            return self._record(node, read, self._declared(node, inputs, scope), known=False)
        state, rows = results
        if node.op_type == "Loop":
            state = state[1:]  # whether it goes on
        stacked = [self._stacked(name, row) for name, row in zip(node.outputs[len(state) :], rows, strict=False)]
        return [*state, *stacked]

    def _turned(self, body: OnnxGraph, turns: Turns, scope: _Scope) -> tuple[list[Value], list[list[Value]]] | None:
        """Return the last state and every turn's rows; ``None`` where the loop has no known end or is too long."""
        state = list(turns.state)
        rows: list[list[Value]] = [[] for _ in range(len(body.outputs) - len(state))]
        for number in range(MAXIMUM_STEPS_OF_LOOPS):
            goes_on = turns.goes_on(number, state)
            if goes_on is None or self._looped > MAXIMUM_STEPS_OF_LOOPS:
                return None
            if not goes_on:
                return state, rows
            given = turns.given(number, state)
            if len(given) != len(body.inputs):
                return None
            values = dict(zip((one.name for one in body.inputs), given, strict=True))
            before = len(self._trace.steps)
            made = list(self._graph(body, _Scope(values, body.declared, scope, scope.depth + 1)))
            self._looped += 1 + max(0, len(self._trace.steps) - before)
            state = made[: len(state)]
            for row, value in zip(rows, made[len(state) :], strict=True):
                row.append(value)
        return None

    def _stacked(self, name: str, row: list[Value]) -> Value:
        """Return the rows of every turn, one after the other."""
        shape = row[0].shape if row else None
        if shape is None or any(value.shape != shape for value in row):
            return Value(None, guessed=True)
        node = OnnxNode(name, "Concat", "", (), (name,), {"axis": 0})
        result = Result((len(row), *shape), row[0].element_type)
        known = not any(value.guessed for value in row)
        return self._record(node, tuple(row), [result], known=known)[0]

    def _names_from_outside(self, graph: OnnxGraph, depth: int = 0) -> list[str]:
        """Return the names that *graph*, or a graph in it, reads and does not make."""
        own = {*graph.initializers, *(one.name for one in graph.inputs)}
        read: dict[str, None] = {}
        for node in graph.nodes:
            read.update(dict.fromkeys(name for name in node.inputs if name and name not in own))
            for name in ("body", "then_branch", "else_branch"):
                inner = self._body(node, name) if depth < MAXIMUM_DEPTH else None
                if inner is not None:
                    deeper = self._names_from_outside(inner, depth + 1)
                    read.update(dict.fromkeys(one for one in deeper if one not in own))
            own.update(node.outputs)
        return list(read)

    def _body(self, node: OnnxNode, name: str) -> OnnxGraph | None:
        """Return the graph that *node* holds; a loop in a loop asks for it at every turn."""
        message = node.attributes.get(name)
        if not isinstance(message, (bytes, Span)):
            return None
        if message not in self._bodies:
            self._bodies[message] = unfused(subgraph(self._model.reader, message))
        return self._bodies[message]

    def _operator(self, node: OnnxNode, inputs: tuple[Value | None, ...], scope: _Scope) -> list[Value]:
        rule = RULES.get(node.op_type) if node.domain in DOMAINS else None
        results: list[Result] | None = None
        if rule is not None:
            call = Call(node.op_type, inputs, node.attributes, len(node.outputs), self._model.opset)
            try:
                results = rule(call)
            except UnresolvedError:
                results = None
            except (MismatchError, ArithmeticError, ValueError, IndexError, TypeError) as error:
                if not any(value is not None and value.guessed for value in inputs):
                    raise _misfit(node, inputs) from error
        known = results is not None and not any(value is not None and value.guessed for value in inputs)
        return self._record(node, inputs, results or self._declared(node, inputs, scope), known=known)

    def _record(
        self, node: OnnxNode, inputs: tuple[Value | None, ...], results: list[Result], *, known: bool
    ) -> list[Value]:
        given = [value for value in inputs if value is not None]
        constant = all(value.constant for value in given) and not node.op_type.startswith("Random")
        weighty = any(value.weighty for value in given) or _holds_weights(node, results)
        outputs = [
            Value(
                result.shape if fits(result.shape) else check_shape(result.shape, f"Output {shown(name)}"),
                result.element_type,
                result.numbers,
                constant=constant,
                weighty=constant and weighty and result.element_type in _WEIGHTS,
                guessed=not known,
                origin=len(self._trace.steps),
            )
            for name, result in zip(node.outputs, results, strict=False)
            if name or len(node.outputs) == 1
        ]
        if _holds_weights(node, results):
            self._trace.weight_counts[f"{len(self._trace.steps)}"] = prod(results[0].shape)
        op_type = printable(node.op_type if node.domain in DOMAINS else f"{node.domain}.{node.op_type}")
        self._trace.steps.append(Step(op_type, node.attributes, inputs, tuple(outputs), known))
        by_place = iter(outputs)
        return [
            next(by_place) if name and place < len(results) else Value(None) for place, name in enumerate(node.outputs)
        ]

    def _declared(self, node: OnnxNode, inputs: tuple[Value | None, ...], scope: _Scope) -> list[Result]:
        """Return what the file says of the outputs; where it says nothing, the first input's shape is most likely."""
        likely = next((value.shape for value in inputs if value is not None and value.shape is not None), ())
        results = []
        for name in node.outputs:
            declared = scope.declared.get(name)
            sizes = None
            if declared is not None and declared.sizes is not None:
                sizes = [evaluate(size, self._symbols) for size in declared.sizes]
            shape = likely if sizes is None or None in sizes else tuple(size for size in sizes if size is not None)
            results.append(Result(shape, declared.element_type if declared is not None else "float"))
        return results

    def _weigh(self, node: OnnxNode, inputs: tuple[Value | None, ...]) -> None:
        figure_places = range(*_NORMALIZED_FIGURES.get(node.op_type, slice(0)).indices(len(inputs)))
        packed = packed_weight(node.op_type, node.attributes)
        if packed and len(inputs) > 1 and inputs[1] is not None and inputs[1].constant:
            self._trace.weight_counts[node.inputs[1]] = prod(packed)
            return
        for place, (name, value) in enumerate(zip(node.inputs, inputs, strict=True)):
            if value is not None and value.weighty and value.origin is None and place not in figure_places:
                self._trace.weight_counts[name] = prod(value.shape or ())
                if value.element_type != "int8" and node.op_type in _PRODUCTS:
                    self._trace.float_products[name] = prod(value.shape or ())

    def _found(self, scope: _Scope, name: str, reader: str) -> Value:
        value = scope.find(name)
        if value is None:
            message = (
                f"Node {shown(reader)} must read what an earlier node, an input or a weight gives; "
                f"got {shown(name)}, which nothing gives. Export the model again."
            )
            raise GraphError(message)
        return value


def packed_weight(op_type: str, attributes: Mapping[str, Attribute]) -> Shape:
    """Return the shape that a product's weight has unpacked, where several of its elements share a byte; else none."""
    sizes = tuple(attributes.get(name) for name in ("K", "N"))
    if op_type not in _PACKED or not all(isinstance(size, int) and size > 0 for size in sizes):
        return ()
    return check_shape([size for size in sizes if isinstance(size, int)], f"Weight of {op_type}")


def sorted_nodes(graph: OnnxGraph) -> Iterable[OnnxNode]:
    """Return the nodes so that each stands after those that it reads from.

    Raises:
        GraphError: They feed each other in a circle.
    """
    makers = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs if name}
    if all(makers.get(name, -1) < index for index, node in enumerate(graph.nodes) for name in node.inputs):
        return graph.nodes
    waiting = [len({makers[name] for name in node.inputs if name in makers}) for node in graph.nodes]
    readers: dict[int, set[int]] = {}
    for index, node in enumerate(graph.nodes):
        for name in node.inputs:
            if name in makers:
                readers.setdefault(makers[name], set()).add(index)
    ready = [index for index, count in enumerate(waiting) if not count]
    for index in ready:
        for reader in sorted(readers.get(index, ())):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)  # the loop goes on through what is added
    if len(ready) < len(graph.nodes):
        stuck = next(node for node, count in zip(graph.nodes, waiting, strict=True) if count)
        message = (
            f"Model must have no cycle; got one through node {shown(stuck.name or stuck.op_type)}. "
            "Export the model again."
        )
        raise GraphError(message)
    return [graph.nodes[index] for index in ready]


def _held(tensor: OnnxTensor) -> Value:
    weighty = tensor.element_type in _WEIGHTS and prod(tensor.shape) > 1
    return Value(tensor.shape, tensor.element_type, tensor.values, constant=True, weighty=weighty)


def _holds_weights(node: OnnxNode, results: list[Result]) -> bool:
    """Tell whether *node* is a constant that looks like weights."""
    return (
        node.op_type == "Constant"
        and not node.inputs
        and results[0].element_type in _WEIGHTS
        and prod(results[0].shape) > 1
    )


def _bound(node: OnnxNode, attributes: Mapping[str, Attribute]) -> OnnxNode:
    """Return a function's *node* with the call's *attributes* in place of references to them."""
    if not any(isinstance(value, Reference) for value in node.attributes.values()):
        return node
    bound = {
        name: attributes.get(value.name) if isinstance(value, Reference) else value
        for name, value in node.attributes.items()
    }
    return replace(node, attributes={name: value for name, value in bound.items() if value is not None})


def _misfit(node: OnnxNode, inputs: tuple[Value | None, ...]) -> InferenceError:
    shapes = ", ".join("x".join(map(str, value.shape or ())) or "a scalar" for value in inputs if value is not None)
    return InferenceError(
        f"{printable(node.op_type)} node {shown(node.name)} cannot take inputs of {shapes or 'no shape'}"
    )
