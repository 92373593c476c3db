"""From the JSON of a `torch.export` program to a `ModelGraph`, by interpreting its calls at two batch sizes.

The program has each tensor's shape, with symbols for free sizes; nothing is inferred here. Names of fields are those of
`torch._export.serde.schema`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from gpusage.graphs.batch_sizes import ModelRun, edge_list_inputs, edges_note, scale_one_batch, scaled_note, to_graph
from gpusage.graphs.model_files import MAXIMUM_NODES, check_shape, printable, quoted
from gpusage.graphs.torch.aten import record
from gpusage.graphs.torch.recording import (
    SEQUENCES_FIRST_NOTE,
    AtenCall,
    Recording,
    Tensor,
    at_any_batch,
    fixed_notes,
    is_one_sample,
)
from gpusage.graphs.torch.size_expressions import evaluate_size, symbols_in
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ElementType, ModelGraph

_RECURRENT = re.compile(r"torch\.ops\.aten\.(lstm|gru|rnn_\w+)\.input$")
_ATTENTION = ",torch.nn.modules.activation.MultiheadAttention"
# Only the first or the second axis of an input may be the batch.
_BATCH_AXES = 2

Json = Any


def batch_axis(graph: Json, first: str) -> int:
    """Return the axis of the batch: 1 if the input goes to a layer with ``batch_first=False``, else 0.

    A MultiheadAttention with ``batch_first=True`` transposes its input first; else its products read it as it is.

    Args:
        graph: The program's calls, and the sizes of their tensors.
        first: The name of its first input.
    """
    sizes = _sizes(graph, first)
    transposed: set[str] = set()
    for node in graph["nodes"]:
        arguments = {item["name"]: item["arg"] for item in node["inputs"]}
        is_attention = str(node.get("metadata", {}).get("nn_module_stack")).endswith(_ATTENTION)
        if is_attention:
            transposed.update(each["as_tensor"]["name"] for each in node["outputs"] if "as_tensor" in each)
        read = (arguments.get("input") or {}).get("as_tensor", {}).get("name")
        if read is None:
            continue
        is_recurrent = _RECURRENT.match(node["target"]) and arguments["batch_first"] == {"as_bool": False}
        if is_recurrent or (is_attention and read not in transposed):
            samples = _sizes(graph, read)[1]
            axes = [place for place, size in enumerate(sizes[:_BATCH_AXES]) if size == samples]
            return 1 if axes == [1] else 0

    return 0


def _sizes(graph: Json, name: str) -> list[int | str]:
    sizes = graph["tensor_values"][name]["sizes"]
    return [size["as_int"] if "as_int" in size else size["as_expr"]["expr_str"] for size in sizes]


# By the number that `torch._export.serde.schema.ScalarType` has in the file; all others are floating.
_ELEMENT_TYPES: dict[int, ElementType] = {1: "int8", 2: "int8", 3: "int32", 4: "int32", 5: "int64", 12: "bool"}
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:/-]")
_MAXIMUM_DEPTH = 8
_MAXIMUM_SIZE = 2**48


class Program:
    """The parts of a program's document that define what it computes."""

    def __init__(self, document: Json, weight_paths: Mapping[str, str]) -> None:
        """Find the parts of *document*; weights with one of *weight_paths* are one weight."""
        module = document["graph_module"]
        self.graph: Json = module["graph"]
        inputs = [each for spec in module["signature"]["input_specs"] for each in spec.items()]
        self.outputs = [
            name for spec in module["signature"]["output_specs"] for body in spec.values() for name in _names(body)
        ]
        self.user_inputs = [name for kind, body in inputs if kind == "user_input" for name in _names(body)]
        self.batch_axis = batch_axis(self.graph, self.user_inputs[0]) if self.user_inputs else 0
        parameters = [body for kind, body in inputs if kind == "parameter"]
        self.parameters = {
            str(weight_paths.get(body["parameter_name"]) or name): name for body in parameters for name in _names(body)
        }

    def sizes(self, name: str) -> list[Json]:
        """Return the sizes of the tensor *name* as the document has them."""
        return list(self.graph["tensor_values"][name]["sizes"])


def program_graph(program: Program, *, name: str, source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of *program* with the free sizes of *shape*, else those of its example inputs.

    Raises:
        GraphError: *shape* does not fit the program, or the program has no input.
    """
    if not program.user_inputs:
        message = f"Model {quoted(name)} must have an input tensor; got none. Export it again."
        raise GraphError(message)

    # Symbols without a size have the size of the example.
    free, notes = _free_symbols(program, shape)
    edges = _edge_list_inputs(program)
    batch = None if edges else _batch_symbol(program)
    count = sum(prod(_shape(program.graph, parameter, free)) for parameter in program.parameters.values())
    run = None if batch is None else at_any_batch(lambda size: _run(program, {**free, batch: size}))
    fixed = example = None

    if run is None:
        run = _run(program, free)
        sizes = dict(enumerate(run.inputs[0][1]))
        fixed = 1 if edges or is_one_sample(run) else sizes.get(program.batch_axis, 1)
        scaled = None if edges or is_one_sample(run) or program.batch_axis else scale_one_batch(run, fixed)
        if scaled is not None:
            run, fixed, example = scaled, None, fixed

    return to_graph(
        run,
        name=name,
        source=source,
        parameter_count=count,
        fixed_batch_size=fixed,
        notes=(
            *([edges_note(edges)] if edges else fixed_notes(fixed)),
            *([] if example is None else [scaled_note(example)]),
            *([SEQUENCES_FIRST_NOTE] if program.batch_axis == 1 else ()),
            *notes,
        ),
    )


def _edge_list_inputs(program: Program) -> str:
    """Return the names of the inputs that list the edges of a graph, ``""`` if none does."""
    whole = {name: _tensor_type(program.graph, name) in {"int32", "int64"} for name in program.user_inputs}
    sizes = {name: [size.get("as_int") for size in program.sizes(name)] for name in program.user_inputs}
    return edge_list_inputs((name, sizes[name], whole[name]) for name in program.user_inputs)


def _run(program: Program, symbols: Mapping[str, int]) -> ModelRun:
    recording = Recording()
    for name in program.user_inputs:
        recording.add_input(printable(name), _tensor(program.graph, name, symbols))
    _Interpreter(recording, symbols).run(program.graph, {}, depth=0)
    return recording.run(Tensor(key=name, shape=()) for name in program.outputs)


class _Interpreter:
    """Records the calls of a graph, and of the graphs inside it."""

    def __init__(self, recording: Recording, symbols: Mapping[str, int]) -> None:
        self.recording = recording
        self.symbols = symbols
        self._from_inputs = {*recording.producers_by_key}

    def run(self, graph: Json, names: dict[str, str], *, depth: int) -> None:
        """Record each call of *graph*; *names* are the outer names of its tensors."""
        # A file may nest graphs, or list calls, without end.
        nodes = graph["nodes"]
        if len(nodes) > 4 * MAXIMUM_NODES or depth > _MAXIMUM_DEPTH:
            message = f"at most {4 * MAXIMUM_NODES} calls, {_MAXIMUM_DEPTH} deep"
            raise ValueError(message)

        for node in nodes:
            inner = [item["arg"]["as_graph"]["graph"] for item in node["inputs"] if "as_graph" in item["arg"]]
            if len(inner) == 1 and ".wrap" in node["target"]:
                self._inline_graph(node, inner[0], names, depth)
            else:
                record(self.recording, self._call(graph, node, names, depth))

    def _call(self, graph: Json, node: Json, names: dict[str, str], depth: int) -> AtenCall:
        arguments = {
            str(item["name"]) or str(number): self._value(graph, item["arg"], names, depth)
            for number, item in enumerate(node["inputs"])
        }
        outputs = tuple(self._tensor_of(graph, name, names, depth) for item in node["outputs"] for name in _names(item))
        call = AtenCall(name=_operator_name(str(node["target"])), arguments=arguments, outputs=outputs)
        # What follows from an input is no constant: its values are the user's.
        if any(tensor.key in self._from_inputs for tensor in call.tensors()):
            self._from_inputs.update(tensor.key for tensor in outputs)

        # An exporter writes out a mask that follows from positions alone. Where the module runs, attention's own kernel
        # knows which keys come later.
        mask = call.tensor("attn_mask") if call.name == "scaled_dot_product_attention" else None
        if mask is None or mask.element_type != "bool" or mask.key in self._from_inputs:
            return call
        return replace(call, arguments={**call.arguments, "attn_mask": None})

    def _inline_graph(self, node: Json, inner: Json, names: dict[str, str], depth: int) -> None:
        """Record the graph inside a ``wrap_with_...`` call in place of the call."""
        outer_names = [name for item in node["inputs"] if "as_graph" not in item["arg"] for name in _names(item["arg"])]
        inner_names = [name for item in inner["inputs"] for name in _names(item)]
        inside = {own: names.get(outer, outer) for own, outer in zip(inner_names, outer_names, strict=False)}
        # Two calls of one inner graph have tensors of the same names.
        prefix = f"{node.get('name') or id(node)}/{depth}/"
        result_names = (name for item in inner["nodes"] for output in item["outputs"] for name in _names(output))
        inside.update({own: prefix + own for own in result_names})
        self.run(inner, inside, depth=depth + 1)
        results = [name for item in inner["outputs"] for name in _names(item)]
        outputs = [name for item in node["outputs"] for name in _names(item)]

        for own, outer in zip(results, outputs, strict=False):
            inner_key, outer_key = inside.get(own, own), names.get(outer, outer)
            self.recording.alias(Tensor(key=inner_key, shape=()), Tensor(key=outer_key, shape=()))
            if inner_key in self._from_inputs:
                self._from_inputs.add(outer_key)

    def _tensor_of(self, graph: Json, name: str, names: dict[str, str], depth: int) -> Tensor:
        tensor = _tensor(graph, name, self.symbols)
        return tensor if depth == 0 else replace(tensor, key=names.get(name, name))

    def _value(self, graph: Json, argument: Json, names: dict[str, str], depth: int) -> Any:  # JSON
        """Return an argument: tensors as `Tensor`, symbolic sizes as numbers, the rest as it is."""
        ((kind, value),) = argument.items()
        if kind in {"as_tensor", "as_tensors", "as_optional_tensor", "as_optional_tensors", "as_nested_tensors"}:
            tensors = [self._tensor_of(graph, name, names, depth) for name in _names(argument)]
            return tensors if kind.endswith("s") else (tensors[0] if tensors else None)
        if kind in {"as_int", "as_float", "as_bool", "as_string", "as_ints", "as_floats", "as_bools"}:
            return value
        if kind == "as_sym_int":
            return self._size(graph, value)
        if kind == "as_sym_ints":
            return [self._size(graph, item) for item in value]

        return None

    def _size(self, graph: Json, value: Json) -> int | None:
        if "as_int" in value:
            return int(value["as_int"])
        known = graph["sym_int_values"].get(value["as_name"])
        return None if known is None else _size_of(known, self.symbols)


def _operator_name(target: str) -> str:
    """Return ``conv2d`` of ``torch.ops.aten.conv2d.default``; operators of other libraries keep its name."""
    parts = target.removeprefix("torch.ops.").split(".")
    name = parts[1] if parts[0] in {"aten", "prims"} and len(parts) > 1 else ".".join(parts[:2])
    return _UNSAFE.sub("_", name)[:80] or "unknown"


def _names(value: Json) -> Iterator[str]:
    """Return the names of the tensors in an argument of any kind, in order."""
    if isinstance(value, list):
        for item in value:
            yield from _names(item)
    elif isinstance(value, dict):
        for kind, body in value.items():
            if kind == "name" and isinstance(body, str) and value.keys() <= {"name"}:
                yield body
            elif kind in _TENSOR_KINDS:
                yield from _names(body)


_TENSOR_KINDS = frozenset(
    {"arg", "as_tensor", "as_tensors", "as_optional_tensor", "as_optional_tensors", "as_nested_tensors"}
)


def _tensor(graph: Json, name: str, symbols: Mapping[str, int]) -> Tensor:
    return Tensor(key=name, shape=_shape(graph, name, symbols), element_type=_tensor_type(graph, name))


def _tensor_type(graph: Json, name: str) -> ElementType:
    return _ELEMENT_TYPES.get(graph["tensor_values"][name]["dtype"], "float")


def _shape(graph: Json, name: str, symbols: Mapping[str, int]) -> tuple[int, ...]:
    sizes = tuple(_size_of(size, symbols) for size in graph["tensor_values"][name]["sizes"])
    return check_shape(sizes, f"Tensor {quoted(name)}")


def _size_of(size: Json, symbols: Mapping[str, int]) -> int:
    number = int(size["as_int"]) if "as_int" in size else evaluate_size(size["as_expr"]["expr_str"], symbols)
    if not 0 <= number <= _MAXIMUM_SIZE:
        message = f"a size of {number}"
        raise ValueError(message)
    return number


def _batch_symbol(program: Program) -> str | None:
    """Return the symbol of the batch in the first input, ``None`` if that size is fixed."""
    sizes = dict(enumerate(program.sizes(program.user_inputs[0])))
    size = sizes.get(program.batch_axis, {})
    if "as_expr" not in size:
        return None
    symbols = symbols_in(size["as_expr"]["expr_str"])
    return next(iter(symbols)) if len(symbols) == 1 else None


def _free_symbols(program: Program, shape: Mapping[str, Sequence[int]]) -> tuple[dict[str, int], list[str]]:
    """Return a value for each symbol, from *shape*, else from the example, and a note on each of the latter."""
    examples: dict[str, int] = {}
    for value in program.graph["tensor_values"].values():
        for size in value["sizes"]:
            _note_example(size, examples)

    symbols = dict(examples)
    explicit: set[str] = set()
    for name, sizes in shape.items():
        _set_symbols(program, name, sizes, symbols, explicit)
    batch = None if _edge_list_inputs(program) else _batch_symbol(program)
    notes = [
        f"Free size {printable(symbol)} is {value}, as in the example that the program was exported with."
        for symbol, value in sorted(symbols.items())
        if symbol != batch and symbol not in explicit
    ]
    return symbols, notes


def _note_example(size: Json, examples: dict[str, int]) -> None:
    if "as_expr" in size:
        hint = size["as_expr"].get("hint") or {}
        for symbol in symbols_in(size["as_expr"]["expr_str"]):
            # The hint is of the whole expression: of one symbol only where that is all there is.
            if size["as_expr"]["expr_str"].count("(") <= 1 and "as_int" in hint:
                examples[symbol] = int(hint["as_int"])
            else:
                examples.setdefault(symbol, 2)


def _set_symbols(
    program: Program, name: str, sizes: Sequence[int], symbols: dict[str, int], explicit: set[str]
) -> None:
    """Set the symbols of the shape option *name*: a symbol itself, or those of an input without its batch."""
    if name in symbols and len(sizes) == 1:
        symbols[name] = sizes[0]
        explicit.add(name)
        return
    if name not in program.user_inputs:
        known = ", ".join(printable(item) for item in [*program.user_inputs, *sorted(symbols)])
        message = (
            f"Option shape must name an input or a free size of the model, {known}; got {quoted(name)}. Use these."
        )
        raise GraphError(message)

    own = [size for place, size in enumerate(program.sizes(name)) if place != program.batch_axis]
    if len(own) != len(sizes):
        message = (
            f"Option shape of input {quoted(name)} must have {len(own)} sizes, batch left out; got {len(sizes)}. "
            "Give them all."
        )
        raise GraphError(message)

    for size, wanted in zip(own, sizes, strict=True):
        if "as_expr" in size:
            symbol = next(iter(symbols_in(size["as_expr"]["expr_str"])))
            symbols[symbol] = wanted
            explicit.add(symbol)
        elif size["as_int"] != wanted:
            message = (
                f"Input {quoted(name)} must have the size {size['as_int']} that it was exported with; got {wanted}. "
                "Export it with a dynamic size."
            )
            raise GraphError(message)
