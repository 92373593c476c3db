"""An ONNX file as plain values: nodes, names, shapes and the few small constants that shapes depend on.

Weights are never decoded, whether they stand inside the file or beside it; of external data only the place is checked.
Field numbers are those of the ONNX project's `onnx.proto`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from gpusage.graphs.guard import MAXIMUM_NODES, shown
from gpusage.graphs.onnx.protobuf import (
    Field,
    Message,
    Reader,
    WireError,
    message_of,
    real_of,
    signed,
    text_of,
    whole_of,
)
from gpusage.graphs.onnx.tensors import Declared, Number, OnnxTensor, read_declared, read_sparse_tensor, read_tensor
from gpusage_hooks.errors import GraphError

MAXIMUM_DEPTH = 8
"""Graphs within graphs."""

_MAGIC = {
    b"PK": "a ZIP archive, such as a PyTorch checkpoint",
    b"\x80": "a Python pickle, such as an old PyTorch checkpoint",
    b"\x89HDF": "an HDF5 file, such as a Keras model",
    b"version https://git-lfs": "a Git LFS pointer, whose file was not downloaded",
    b"<": "a web page or XML",
}


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute of a function's node that stands for an attribute of the function."""

    name: str


Attribute = Number | str | tuple[Number, ...] | OnnxTensor | Message | Reference
"""A message is a subgraph, not yet parsed."""


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One node as the file has it."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A graph, a subgraph, or the body of a function (which declares names alone)."""

    name: str
    nodes: tuple[OnnxNode, ...]
    initializers: Mapping[str, OnnxTensor]
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    declared: Mapping[str, Declared]


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A file: its graph, and the functions that its nodes may call."""

    graph: OnnxGraph
    functions: Mapping[tuple[str, str], OnnxGraph]
    opset: int
    reader: Reader


def read_file(path: str, descriptor: int) -> OnnxModel:
    """Return the ONNX model in the open file *descriptor*.

    Raises:
        GraphError: The file is not an ONNX model, is cut off, or is beyond the limits.
    """
    reader = Reader(descriptor)
    try:
        return _model(reader, reader.whole())
    except (WireError, UnicodeDecodeError) as error:
        message = f"Model {shown(path)} must be a whole ONNX file; got {_found(descriptor)}. Export it again."
        raise GraphError(message) from error


def subgraph(reader: Reader, message: Message) -> OnnxGraph:
    """Return the graph that a control-flow node holds as *message*.

    Raises:
        GraphError: It is malformed.
    """
    try:
        return _graph(reader, message)
    except (WireError, UnicodeDecodeError) as error:
        text = "Model's subgraphs must be whole ONNX graphs; got something else. Export it again."
        raise GraphError(text) from error


def _model(reader: Reader, message: Message) -> OnnxModel:
    graph: Message | None = None
    functions = {}
    opset = 0
    for number, value in reader.fields(message):
        match number:
            case 7:
                graph = message_of(value)
            case 8:
                opset = max(opset, _default_opset(reader, message_of(value)))
            case 25:
                key, body = _function(reader, message_of(value))
                functions[key] = body
    if graph is None or not opset:
        raise WireError
    return OnnxModel(_graph(reader, graph), functions, opset, reader)


def _default_opset(reader: Reader, message: Message) -> int:
    domain, version = "", 0
    for number, value in reader.fields(message):
        match number:
            case 1:
                domain = text_of(value)
            case 2:
                version = whole_of(value)
    return version if domain in {"", "ai.onnx"} else 1


def _function(reader: Reader, message: Message) -> tuple[tuple[str, str], OnnxGraph]:
    name = domain = overload = ""
    nodes: list[OnnxNode] = []
    inputs: list[Declared] = []
    outputs: list[Declared] = []
    for number, value in reader.fields(message):
        match number:
            case 1:
                name = text_of(value)
            case 4:
                inputs.append(Declared(text_of(value), None, "float"))
            case 5:
                outputs.append(Declared(text_of(value), None, "float"))
            case 7:
                nodes.append(_node(reader, message_of(value)))
            case 10:
                domain = text_of(value)
            case 13:
                overload = text_of(value)
    return (domain, _overloaded(name, overload)), OnnxGraph(name, tuple(nodes), {}, tuple(inputs), tuple(outputs), {})


def _graph(reader: Reader, message: Message) -> OnnxGraph:
    name = ""
    nodes: list[OnnxNode] = []
    tensors: list[OnnxTensor] = []
    inputs: list[Declared] = []
    outputs: list[Declared] = []
    declared: list[Declared] = []
    for number, value in reader.fields(message):
        match number:
            case 1:
                nodes.append(_node(reader, message_of(value)))
            case 2:
                name = text_of(value)
            case 5:
                tensors.append(read_tensor(reader, message_of(value)))
            case 11:
                inputs.append(read_declared(reader, message_of(value)))
            case 12:
                outputs.append(read_declared(reader, message_of(value)))
            case 13:
                declared.append(read_declared(reader, message_of(value)))
            case 15:
                tensors.append(read_sparse_tensor(reader, message_of(value)))
    if len(nodes) > MAXIMUM_NODES:
        text = f"Model must have at most {MAXIMUM_NODES} nodes; got {len(nodes)}. Simplify the graph."
        raise GraphError(text)
    initializers = {tensor.name: tensor for tensor in tensors}
    free = tuple(one for one in inputs if one.name not in initializers)
    known = {one.name: one for one in (*declared, *outputs)}
    return OnnxGraph(name, tuple(nodes), initializers, free, tuple(outputs), known)


def _node(reader: Reader, message: Message) -> OnnxNode:
    name = op_type = domain = overload = ""
    inputs: list[str] = []
    outputs: list[str] = []
    attributes: dict[str, Attribute] = {}
    for number, value in reader.fields(message):
        match number:
            case 1:
                inputs.append(text_of(value))
            case 2:
                outputs.append(text_of(value))
            case 3:
                name = text_of(value)
            case 4:
                op_type = text_of(value)
            case 5:
                key, attribute = _attribute(reader, message_of(value))
                if attribute is not None:
                    attributes[key] = attribute
            case 7:
                domain = text_of(value)
            case 8:
                overload = text_of(value)
    domain = "" if domain == "ai.onnx" else domain
    return OnnxNode(name, _overloaded(op_type, overload), domain, tuple(inputs), tuple(outputs), attributes)


def _overloaded(name: str, overload: str) -> str:
    """Return the name of one of several functions that differ in this word alone."""
    return f"{name}:{overload}" if overload else name


def _attribute(reader: Reader, message: Message) -> tuple[str, Attribute | None]:  # noqa: C901 - a case a field
    name = ""
    attribute: Attribute | None = None
    numbers: list[Number] = []
    for number, value in reader.fields(message):
        match number:
            case 1:
                name = text_of(value)
            case 2:
                attribute = real_of(value)
            case 3:
                attribute = signed(whole_of(value))
            case 4:
                attribute = _word(value)
            case 5:
                attribute = read_tensor(reader, message_of(value))
            case 6:
                attribute = message_of(value)
            case 7:
                numbers.extend(reader.reals(value))
            case 8:
                numbers.extend(reader.wholes(value))
            case 21:
                attribute = Reference(text_of(value))
    return name, tuple(numbers) if attribute is None and numbers else attribute


def _word(value: Field) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else None


def _found(descriptor: int) -> str:
    """Return what the file seems to be, for a message."""
    head = os.pread(descriptor, 64, 0)
    if not head:
        return "an empty file"
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    return "something else, or one that is cut off"
