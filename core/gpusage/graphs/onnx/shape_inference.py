"""Shape inference: runs an ONNX model on shapes alone, operator by operator, with a number for every size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from gpusage.graphs.model_files import MAXIMUM_NODES, check_shape, is_allowed_shape, printable, quoted
from gpusage.graphs.onnx.file import (
    MAXIMUM_DEPTH,
    Attribute,
    OnnxGraph,
    OnnxModel,
    OnnxNode,
    Reference,
    ValueInfo,
    read_subgraph,
)
from gpusage.graphs.onnx.inputs import evaluate_dimension
from gpusage.graphs.onnx.loops import LoopPlan, plan_loop, plan_scan
from gpusage.graphs.onnx.protobuf import Message, Span
from gpusage.graphs.onnx.rewrites import sorted_nodes, split_fused_nodes
from gpusage.graphs.onnx.shapes import RULES, Call, MismatchError, Result, UnresolvedError, Value
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Shape

MAXIMUM_LOOP_STEPS = 12_000
"""Steps in all iterations of all loops together: a longer loop would delay a job's submission."""
DOMAINS = ("", "com.microsoft")
"""Domains of the operators with rules: ONNX's and ONNX Runtime's."""

_WEIGHTS = ("float", "int8")
# Operators that read most of a model's weights.
_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
_PACKED = ("MatMulNBits", "MatMulBnb4")
# Untrained constant inputs: running statistics, which PyTorch has as buffers, and the zeros below a scatter.
_UNTRAINED = {"BatchNormalization": slice(3, 5), **dict.fromkeys(("ScatterElements", "ScatterND"), slice(1))}


class InferenceError(Exception):
    """A node cannot take its inputs; the text names the node."""


@dataclass(frozen=True, slots=True)
class Step:
    """An operator of a run.

    Attributes:
        known: Whether a rule gave the output shapes, from certain input shapes.
    """

    op_type: str
    attributes: Mapping[str, Attribute]
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    known: bool


@dataclass(slots=True)
class Trace:
    """A whole run.

    Attributes:
        weight_counts: Number of elements of each weight in use, by name.
        float_products: The same of weights that products read as floats.
    """

    inputs: tuple[tuple[str, Shape], ...] = ()
    steps: list[Step] = field(default_factory=list)
    outputs: tuple[Value, ...] = ()
    weight_counts: dict[str, int] = field(default_factory=dict)
    float_products: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Scope:
    """The values that a graph's nodes can read by name: its own, then the values of the graph around it."""

    values: dict[str, Value]
    declared: Mapping[str, ValueInfo]
    parent: _Scope | None = None
    depth: int = 0

    def find(self, name: str) -> Value | None:
        """Return the value of *name* from the innermost graph that has it."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        return None


def infer(model: OnnxModel, inputs: Mapping[str, Shape], symbols: Mapping[str, int]) -> Trace:
    """Return the run of *model* on inputs of the shapes *inputs*.

    Args:
        model: The file's model.
        inputs: Shape of every input.
        symbols: Value of each named dimension.

    Raises:
        InferenceError: The shapes do not fit an operator.
        GraphError: The graph has a cycle or an undefined name, or exceeds a limit.
    """
    return _Interpreter(model, symbols).run(inputs)


class _Interpreter:
    """Runs a model once."""

    def __init__(self, model: OnnxModel, symbols: Mapping[str, int]) -> None:
        self._model = model
        self._symbols = symbols
        self._trace = Trace()
        self._bodies: dict[Message, OnnxGraph] = {}
        self._loop_steps = 0

    def run(self, inputs: Mapping[str, Shape]) -> Trace:
        graph = self._model.graph
        values, shapes = {}, []
        for index, one in enumerate(graph.inputs):
            values[one.name] = Value(inputs[one.name], one.element_type, producer=-1 - index)
            shapes.append((printable(one.name), inputs[one.name]))

        self._trace.inputs = tuple(shapes)
        self._trace.outputs = self._run_graph(graph, _Scope(values, graph.declared))
        return self._trace

    def _run_graph(self, graph: OnnxGraph, scope: _Scope) -> tuple[Value, ...]:
        for name, tensor in graph.initializers.items():
            # The inputs of a loop's body may replace its initializers.
            if name not in scope.values:
                # A single number is a scale or an exponent, not a weight.
                is_weight = tensor.element_type in _WEIGHTS and prod(tensor.shape) > 1
                scope.values[name] = Value(
                    tensor.shape, tensor.element_type, tensor.values, constant=True, is_weight=is_weight
                )

        for node in sorted_nodes(graph):
            outputs = self._run_node(node, scope)
            scope.values.update(zip(node.outputs, outputs, strict=False))
        return tuple(self._lookup(scope, one.name, graph.name) for one in graph.outputs)

    def _run_node(self, node: OnnxNode, scope: _Scope) -> list[Value]:
        inputs = tuple(self._lookup(scope, name, node.name) if name else None for name in node.inputs)
        function = self._model.functions.get((node.domain, node.op_type))
        # Functions may call themselves, and a small file may unroll to many steps.
        if scope.depth >= MAXIMUM_DEPTH or len(self._trace.steps) >= MAXIMUM_NODES:
            message = (
                f"Model must run in at most {MAXIMUM_NODES} steps, {MAXIMUM_DEPTH} graphs deep; "
                f"node {quoted(node.name or node.op_type)} goes further. Simplify the graph."
            )
            raise GraphError(message)

        if function is not None:
            # A function sees nothing of its caller but its inputs, so its scope has no parent.
            names = (one.name for one in function.inputs)
            values = {name: value for name, value in zip(names, inputs, strict=False) if value is not None}
            bound = replace(function, nodes=tuple(_bind_attributes(inner, node.attributes) for inner in function.nodes))
            return list(self._run_graph(bound, _Scope(values, {}, depth=scope.depth + 1)))
        if node.op_type == "If" and not node.domain:
            return self._run_branch(node, inputs, scope)
        if node.op_type in {"Loop", "Scan"} and not node.domain:
            return self._run_loop(node, inputs, scope)
        self._count_weights(node, inputs)
        return self._run_operator(node, inputs, scope)

    def _run_branch(self, node: OnnxNode, inputs: tuple[Value | None, ...], scope: _Scope) -> list[Value]:
        """Run the branch of the condition; the longer branch if the condition depends on a user's data."""
        branches = [self._body(node, name) for name in ("then_branch", "else_branch")]
        # The longer branch is the pessimistic one, for time and for memory.
        condition = inputs[0].elements if inputs and inputs[0] else None
        graphs = [branch for branch in branches if branch is not None]
        if len(graphs) != len(branches):
            raise _mismatch(node, inputs)

        branch = graphs[0 if condition[0] else 1] if condition else max(graphs, key=lambda graph: len(graph.nodes))
        outputs = self._run_graph(branch, _Scope({}, branch.declared, scope, scope.depth + 1))
        if condition or not inputs or inputs[0] is None:
            return list(outputs)
        # What comes out follows from the condition, too: else the net that computes it would lead nowhere.
        results = [Result(one.shape or (), one.element_type) for one in outputs]
        known = not any(one.is_estimated for one in outputs)
        return self._record(replace(node, op_type="Reshape"), (*outputs, inputs[0]), results, known=known)

    def _run_loop(self, node: OnnxNode, inputs: tuple[Value | None, ...], scope: _Scope) -> list[Value]:
        """Run all iterations of a loop; if their number is unknown or very large, record an unknown operator."""
        body = self._body(node, "body")
        if body is None:
            raise _mismatch(node, inputs)
        start = len(self._trace.steps)
        plan = plan_loop(node, inputs) if node.op_type == "Loop" else plan_scan(node, inputs, body)
        if plan is not None and len(body.outputs) < len(plan.state):
            raise _mismatch(node, inputs)

        results = None if plan is None else self._run_iterations(body, plan, scope)
        # The iterations until then do not count.
        if results is None:
            del self._trace.steps[start:]
            outer = (scope.find(name) for name in self._captured_names(body))
            read = (*inputs, *(value for value in outer if value is not None))
            return self._record(node, read, self._declared_results(node, inputs, scope), known=False)

        state, rows = results
        if node.op_type == "Loop":
            state = state[1:]  # the condition
        stacked = [self._stack_rows(name, row) for name, row in zip(node.outputs[len(state) :], rows, strict=False)]
        return [*state, *stacked]

    def _run_iterations(
        self, body: OnnxGraph, plan: LoopPlan, scope: _Scope
    ) -> tuple[list[Value], list[list[Value]]] | None:
        """Return the last state and the rows of each iteration, ``None`` if the loop has no known end or is long."""
        state = list(plan.state)
        rows: list[list[Value]] = [[] for _ in range(len(body.outputs) - len(state))]
        for number in range(MAXIMUM_LOOP_STEPS):
            continues = plan.continues(number, state)
            if continues is None or self._loop_steps > MAXIMUM_LOOP_STEPS:
                return None
            if not continues:
                return state, rows

            inputs = plan.body_inputs(number, state)
            if len(inputs) != len(body.inputs):
                return None
            values = dict(zip((one.name for one in body.inputs), inputs, strict=True))
            before = len(self._trace.steps)
            outputs = list(self._run_graph(body, _Scope(values, body.declared, scope, scope.depth + 1)))
            # One more for the iteration itself, which may be empty; an inner loop may have removed steps.
            self._loop_steps += 1 + max(0, len(self._trace.steps) - before)

            state = outputs[: len(state)]
            for row, value in zip(rows, outputs[len(state) :], strict=True):
                row.append(value)
        return None

    def _stack_rows(self, name: str, row: list[Value]) -> Value:
        """Return an output's rows of all iterations as a tensor."""
        shape = row[0].shape if row else None
        if shape is None or any(value.shape != shape for value in row):
            return Value(None, is_estimated=True)
        # A GPU copies the rows, as a concatenation does.
        node = OnnxNode(name, "Concat", "", (), (name,), {"axis": 0})
        result = Result((len(row), *shape), row[0].element_type)
        known = not any(value.is_estimated for value in row)
        return self._record(node, tuple(row), [result], known=known)[0]

    def _captured_names(self, graph: OnnxGraph, depth: int = 0) -> list[str]:
        """Return the names that *graph*, or a graph in it, reads from the graphs around it."""
        # What a body reads from outside counts as read by the loop.
        own = {*graph.initializers, *(one.name for one in graph.inputs)}
        read: dict[str, None] = {}
        for node in graph.nodes:
            read.update(dict.fromkeys(name for name in node.inputs if name and name not in own))
            for name in ("body", "then_branch", "else_branch"):
                inner = self._body(node, name) if depth < MAXIMUM_DEPTH else None
                if inner is not None:
                    deeper = self._captured_names(inner, depth + 1)
                    read.update(dict.fromkeys(one for one in deeper if one not in own))
            own.update(node.outputs)

        return list(read)

    def _body(self, node: OnnxNode, name: str) -> OnnxGraph | None:
        """Return the graph in attribute *name* of *node*, parsed once: a loop in a loop runs it in each iteration."""
        message = node.attributes.get(name)
        if not isinstance(message, (bytes, Span)):
            return None
        # Two nodes with equal bodies share the parsed graph: a body is never changed.
        if message not in self._bodies:
            self._bodies[message] = split_fused_nodes(read_subgraph(self._model.reader, message))
        return self._bodies[message]

    def _run_operator(self, node: OnnxNode, inputs: tuple[Value | None, ...], scope: _Scope) -> list[Value]:
        rule = RULES.get(node.op_type) if node.domain in DOMAINS else None
        is_estimated = any(value is not None and value.is_estimated for value in inputs)
        results: list[Result] | None = None
        if rule is not None:
            call = Call(node.op_type, inputs, node.attributes, len(node.outputs), self._model.opset)
            try:
                results = rule(call)
            except UnresolvedError:
                results = None
            except (MismatchError, ArithmeticError, ValueError, IndexError, TypeError) as error:
                # With estimated inputs the guess may be wrong, and not the file.
                if not is_estimated:
                    raise _mismatch(node, inputs) from error

        known = results is not None and not is_estimated
        return self._record(node, inputs, results or self._declared_results(node, inputs, scope), known=known)

    def _record(
        self, node: OnnxNode, inputs: tuple[Value | None, ...], results: list[Result], *, known: bool
    ) -> list[Value]:
        # Results of constants are constants, except random numbers, which have no inputs.
        is_constant, is_weight = not node.op_type.startswith("Random"), False
        for value in inputs:
            if value is not None:
                is_constant = is_constant and value.constant
                is_weight = is_weight or value.is_weight

        # Some exporters write weights as Constant nodes with several floats or int8s.
        count = prod(results[0].shape) if node.op_type == "Constant" and not node.inputs else 0
        if count > 1 and results[0].element_type in _WEIGHTS:
            is_weight = True
            self._trace.weight_counts[f"{len(self._trace.steps)}"] = count

        outputs: list[Value] = []
        values: list[Value] = []
        for place, name in enumerate(node.outputs):
            # An output without a name is not in use, but keeps its place.
            if place >= len(results) or not (name or len(node.outputs) == 1):
                values.append(Value(None))
                continue
            shape, element_type, elements = results[place].shape, results[place].element_type, results[place].elements
            output = Value(
                shape if is_allowed_shape(shape) else check_shape(shape, f"Output {quoted(name)}"),
                element_type,
                elements,
                constant=is_constant,
                is_weight=is_constant and is_weight and element_type in _WEIGHTS,
                is_estimated=not known,
                producer=len(self._trace.steps),
            )
            outputs.append(output)
            values.append(output if name else Value(None))
        op_type = printable(node.op_type if node.domain in DOMAINS else f"{node.domain}.{node.op_type}")
        self._trace.steps.append(Step(op_type, node.attributes, inputs, tuple(outputs), known))
        return values

    def _declared_results(self, node: OnnxNode, inputs: tuple[Value | None, ...], scope: _Scope) -> list[Result]:
        """Return the outputs' declared shapes, else the first input's shape, which is the likeliest."""
        likely = next((value.shape for value in inputs if value is not None and value.shape is not None), ())
        results = []
        for name in node.outputs:
            declared = scope.declared.get(name)
            sizes = None
            if declared is not None and declared.sizes is not None:
                sizes = [evaluate_dimension(size, self._symbols) for size in declared.sizes]
            shape = likely if sizes is None or None in sizes else tuple(size for size in sizes if size is not None)
            results.append(Result(shape, declared.element_type if declared is not None else "float"))

        return results

    def _count_weights(self, node: OnnxNode, inputs: tuple[Value | None, ...]) -> None:
        # A slice names the inputs of an operator by their places, from its signature.
        untrained = range(*_UNTRAINED.get(node.op_type, slice(0)).indices(len(inputs)))
        packed = packed_weight(node.op_type, node.attributes)
        if packed and len(inputs) > 1 and inputs[1] is not None and inputs[1].constant:
            self._trace.weight_counts[node.inputs[1]] = prod(packed)
            return

        for place, (name, value) in enumerate(zip(node.inputs, inputs, strict=True)):
            if value is not None and place in untrained:
                # A Constant node has counted its elements already.
                self._trace.weight_counts.pop(f"{value.producer}", None)
            elif value is not None and value.is_weight and value.producer is None:
                self._trace.weight_counts[name] = prod(value.shape or ())
                if value.element_type != "int8" and node.op_type in _PRODUCTS:
                    self._trace.float_products[name] = prod(value.shape or ())

    def _lookup(self, scope: _Scope, name: str, reader: str) -> Value:
        value = scope.find(name)
        if value is None:
            message = (
                f"Node {quoted(reader)} must read what an earlier node, an input or a weight gives; "
                f"got {quoted(name)}, which does not exist. Export the model again."
            )
            raise GraphError(message)

        return value


def packed_weight(op_type: str, attributes: Mapping[str, Attribute]) -> Shape:
    """Return the unpacked shape of a product's packed weight, several elements to a byte; ``()`` for other weights."""
    rows, columns = attributes.get("K"), attributes.get("N")
    if op_type not in _PACKED or not isinstance(rows, int) or not isinstance(columns, int) or min(rows, columns) <= 0:
        return ()
    return check_shape([rows, columns], f"Weight of {op_type}")


def _bind_attributes(node: OnnxNode, attributes: Mapping[str, Attribute]) -> OnnxNode:
    """Return a function's *node* with the call's *attributes* in place of references to them."""
    if not any(isinstance(value, Reference) for value in node.attributes.values()):
        return node
    bound = {
        name: attributes.get(value.name) if isinstance(value, Reference) else value
        for name, value in node.attributes.items()
    }
    return replace(node, attributes={name: value for name, value in bound.items() if value is not None})


def _mismatch(node: OnnxNode, inputs: tuple[Value | None, ...]) -> InferenceError:
    shapes = ", ".join("x".join(map(str, value.shape or ())) or "a scalar" for value in inputs if value is not None)
    return InferenceError(
        f"{printable(node.op_type)} node {quoted(node.name)} cannot take inputs of {shapes or 'no shape'}"
    )
