"""An ONNX file as plain values: nodes, names, shapes and the few small constants that shapes depend on.

Weights are never decoded, whether they are inside the file or beside it; of external data only the path is validated.
The bytes of a matrix's first and last element show whether another matrix is its transpose.
Field numbers and names are from onnx.proto (ONNX 1.17, IR version 10).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from gpusage.graphs.model_files import MAXIMUM_NODES, MAXIMUM_RANK, check_shape, quoted
from gpusage.graphs.onnx.protobuf import (
    Fields,
    Message,
    Reader,
    Span,
    WireError,
    as_float,
    as_message,
    as_text,
    as_unsigned,
    signed,
)
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ElementType, Shape

MAXIMUM_DEPTH = 8
"""Depth of graphs within graphs."""
MAXIMUM_VALUES = 4096
"""Most elements of a decoded constant."""

Number = int | float
Size = int | str | None
"""A declared dimension: fixed, a name or an expression of names, or unknown."""

# Numbers of TensorProto.DataType.
_FLOAT, _UINT8, _INT8, _INT32, _INT64, _STRING, _BOOL, _DOUBLE = 1, 2, 3, 6, 7, 8, 9, 11
_UINT16, _INT16, _UINT32, _UINT64, _UINT4, _INT4 = 4, 5, 12, 13, 21, 22
_STRUCT_CODES = {_FLOAT: "f", _DOUBLE: "d", _INT64: "q", _INT32: "i", _BOOL: "?"}
# Up to how many elements a constant is decoded, by type: shapes are computed from few, most of them int64.
_DECODED_ELEMENTS = {_INT64: MAXIMUM_VALUES, _INT32: 64, _BOOL: 64, _FLOAT: 16, _DOUBLE: 16}
ELEMENT_TYPES: Mapping[int, ElementType] = {
    **dict.fromkeys((_INT64, _UINT64, _STRING), "int64"),
    **dict.fromkeys((_INT32, _UINT32, _UINT16, _INT16), "int32"),
    **dict.fromkeys((_INT8, _UINT8, _UINT4, _INT4), "int8"),
    _BOOL: "bool",
}

_MATRIX_RANK = 2
_MAGIC = {
    b"PK": "a ZIP archive, such as a PyTorch checkpoint",
    b"\x80": "a Python pickle, such as an old PyTorch checkpoint",
    b"\x89HDF": "an HDF5 file, such as a Keras model",
    b"version https://git-lfs": "a Git LFS pointer, whose file was not downloaded",
    b"<": "a web page or XML",
}


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """A constant: its shape and type, and its elements if they are few.

    Attributes:
        corners: Bytes of a matrix's first and last element, which its transpose has as well; else empty.
    """

    name: str
    shape: Shape
    element_type: ElementType
    values: tuple[Number, ...] | None = None
    corners: bytes = b""


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """A value's declaration in the file; ``sizes`` is ``None`` without a declared shape."""

    name: str
    sizes: tuple[Size, ...] | None
    element_type: ElementType


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute of a function's node that takes its value from the function's attribute of this name."""

    name: str


Attribute = Number | str | tuple[Number, ...] | OnnxTensor | Message | Reference
"""A message is a subgraph, not yet parsed."""


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A node of the file."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A graph, a subgraph, or the body of a function, which declares names alone."""

    name: str
    nodes: tuple[OnnxNode, ...]
    initializers: Mapping[str, OnnxTensor]
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    declared: Mapping[str, ValueInfo]


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A file: its graph, and the functions that its nodes may call, by domain and name."""

    graph: OnnxGraph
    functions: Mapping[tuple[str, str], OnnxGraph]
    opset: int
    reader: Reader


def read_file(path: str, descriptor: int) -> OnnxModel:
    """Return the ONNX model in the open file *descriptor*.

    Raises:
        GraphError: The file is not an ONNX model, is cut off, or exceeds a limit.
    """
    reader = Reader(descriptor)
    whole_file = Span(0, os.fstat(descriptor).st_size)
    try:
        return _read_model(reader, whole_file)
    except (WireError, UnicodeDecodeError) as error:
        # The likeliest mistake is a file of another kind: the message names it.
        head = os.pread(descriptor, 64, 0)
        kinds = (name for magic, name in _MAGIC.items() if head.startswith(magic))
        actual = next(kinds, "something else, or one that is cut off") if head else "an empty file"
        message = f"Model {quoted(path)} must be a whole ONNX file; got {actual}. Export it again."
        raise GraphError(message) from error


def read_subgraph(reader: Reader, message: Message) -> OnnxGraph:
    """Return the graph in *message*, an attribute of a control-flow node.

    Raises:
        GraphError: The graph is malformed.
    """
    try:
        return _read_graph(reader, message)
    except (WireError, UnicodeDecodeError) as error:
        text = "Model's subgraphs must be whole ONNX graphs; got something else. Export it again."
        raise GraphError(text) from error


def _read_model(reader: Reader, message: Message) -> OnnxModel:
    graph: Message | None = None
    functions = {}
    opset = 0
    for number, value in reader.fields(message):
        match number:
            case 7:
                graph = as_message(value)
            case 8:
                opset_import = Fields(reader, as_message(value))
                is_default = opset_import.text(1) in {"", "ai.onnx"}
                # A file of ONNX Runtime's operators alone names no version of ONNX's; any will do.
                opset = max(opset, opset_import.unsigned(2) if is_default else 1)
            case 25:
                fields = Fields(reader, as_message(value))
                inputs, outputs = (tuple(ValueInfo(text, None, "float") for text in fields.texts(at)) for at in (4, 5))
                nodes = tuple(_read_node(reader, node) for node in fields.messages(7))
                key = (fields.text(10), _overloaded(fields.text(1), fields.text(13)))
                functions[key] = OnnxGraph(fields.text(1), nodes, {}, inputs, outputs, {})
    if graph is None or not opset:
        raise WireError

    return OnnxModel(_read_graph(reader, graph), functions, opset, reader)


def _read_graph(reader: Reader, message: Message) -> OnnxGraph:
    # One field at a time, not `Fields`: a graph's nodes and tensors together may be large.
    name = ""
    nodes: list[OnnxNode] = []
    tensors: list[OnnxTensor] = []
    inputs: list[ValueInfo] = []
    outputs: list[ValueInfo] = []
    declared: list[ValueInfo] = []

    for number, value in reader.fields(message):
        match number:
            case 1:
                nodes.append(_read_node(reader, as_message(value)))
            case 2:
                name = as_text(value)
            case 5:
                tensors.append(_read_tensor(reader, as_message(value)))
            case 11:
                inputs.append(_read_value_info(reader, as_message(value)))
            case 12:
                outputs.append(_read_value_info(reader, as_message(value)))
            case 13:
                declared.append(_read_value_info(reader, as_message(value)))
            case 15:
                # A sparse constant counts as a dense one: operators compute with it so.
                fields = Fields(reader, as_message(value))
                if not fields[1]:
                    raise WireError
                values = _read_tensor(reader, as_message(fields[1][-1]))
                shape = _check_tensor_shape(fields.integers(3), values.name)
                tensors.append(OnnxTensor(values.name, shape, values.element_type))

    if len(nodes) > MAXIMUM_NODES:
        text = f"Model must have at most {MAXIMUM_NODES} nodes; got {len(nodes)}. Simplify the graph."
        raise GraphError(text)

    initializers = {tensor.name: tensor for tensor in tensors}
    # Before IR version 4 a graph's inputs listed its initializers, too.
    free_inputs = [one for one in inputs if one.name not in initializers]
    known = {one.name: one for one in (*declared, *outputs)}
    return OnnxGraph(name, tuple(nodes), initializers, tuple(free_inputs), tuple(outputs), known)


def _read_node(reader: Reader, message: Message) -> OnnxNode:
    fields = Fields(reader, message)
    attributes = {}
    for message_of_attribute in fields.messages(5):
        name, attribute = _read_attribute(reader, message_of_attribute)
        if attribute is not None:
            attributes[name] = attribute

    # Since IR version 10 several functions may have one name, and differ in their overload.
    op_type, overload, domain = fields.text(4), fields.text(8), fields.text(7)
    return OnnxNode(
        name=fields.text(3),
        op_type=_overloaded(op_type, overload),
        domain="" if domain == "ai.onnx" else domain,
        inputs=fields.texts(1),
        outputs=fields.texts(2),
        attributes=attributes,
    )


def _overloaded(name: str, overload: str) -> str:
    """Return the name of a function with its *overload* (IR version 10)."""
    return f"{name}:{overload}" if overload else name


def _read_attribute(reader: Reader, message: Message) -> tuple[str, Attribute | None]:
    name = ""
    attribute: Attribute | None = None
    elements: list[Number] = []
    for number, value in reader.fields(message):
        match number:
            case 1:
                name = as_text(value)
            case 2:
                attribute = as_float(value)
            case 3:
                attribute = signed(as_unsigned(value))
            case 4:
                # Text is bytes here, in whatever encoding the exporter had.
                attribute = value.decode(errors="replace") if isinstance(value, bytes) else None
            case 5:
                attribute = _read_tensor(reader, as_message(value))
            case 6:
                attribute = as_message(value)
            case 7:
                elements.extend(reader.floats(value))
            case 8:
                elements.extend(reader.integers(value))
            case 21:
                attribute = Reference(as_text(value))

    # Repeated fields may be unpacked, so their elements come one by one.
    return name, tuple(elements) if attribute is None and elements else attribute


def _read_tensor(reader: Reader, message: Message) -> OnnxTensor:
    """Return a constant of any size; elements of a large constant stay in the file.

    Raises:
        GraphError: The shape exceeds a limit, or the path of its data is outside the model's folder.
    """
    fields = Fields(reader, message)
    name = fields.text(8)
    data_type = fields.unsigned(2, default=_FLOAT)
    shape = _check_tensor_shape(fields.integers(1), name)
    for entry in fields.messages(13):
        _check_external_data(reader, entry)

    count = prod(shape)
    values = None
    if not fields[13] and count <= _DECODED_ELEMENTS.get(data_type, 0):
        values = _decode_elements(reader, data_type, fields)

    # Corners are read where the weights are in the file, as ``raw_data``.
    corners = b""
    content = fields[9][-1] if fields[9] else b""
    if len(shape) == _MATRIX_RANK and values is None and count and content and not isinstance(content, int):
        length = len(content) if isinstance(content, bytes) else content.end - content.start
        corners = b"" if length % count else reader.ends(content, length // count)

    # Of other elements than the shape has, none is sure.
    elements = values if values is not None and len(values) == count else None
    return OnnxTensor(name, shape, ELEMENT_TYPES.get(data_type, "float"), elements, corners)


def _check_tensor_shape(sizes: list[int], name: str) -> Shape:
    shape = check_shape(sizes, f"Tensor {quoted(name)}")
    if min(shape, default=0) < 0:
        text = f"Tensor {quoted(name)} must have sizes of at least 0; got {min(shape)}. Export the model again."
        raise GraphError(text)
    return shape


def _decode_elements(reader: Reader, data_type: int, fields: Fields) -> tuple[Number, ...] | None:
    """Return the elements of a small constant, from ``raw_data`` or from the field of its type."""
    # onnx.proto has float_data, int32_data, int64_data and double_data beside raw_data.
    content = fields[9][-1] if fields[9] else b""
    repeated = [value for number in (4, 5, 7, 10) for value in fields[number]]
    if not content:
        if data_type not in {_FLOAT, _DOUBLE}:
            return tuple(element for value in repeated for element in reader.integers(value))
        content = b"".join(value for value in repeated if isinstance(value, bytes))

    code = _STRUCT_CODES[data_type]
    if not isinstance(content, bytes) or len(content) % struct.calcsize(code):
        return None

    # The bytes may be many more than the shape has elements.
    count = len(content) // struct.calcsize(code)
    reader.charge(count)
    return struct.unpack(f"<{count}{code}", content)


def _check_external_data(reader: Reader, message: Message) -> None:
    """Reject a path of weights that is outside the model's own folder.

    Raises:
        GraphError: The path is absolute or leads upward.
    """
    if isinstance(message, bytes) and b"location" not in message:
        return  # an offset, length or checksum

    # gpusage never opens the file, but the user's framework would.
    entry = Fields(reader, message)
    location = entry.text(2)
    parts = location.replace("\\", "/").split("/")
    if entry.text(1) == "location" and (not parts[0] or ".." in parts or "\0" in location):
        text = f"External data must lie in the model's own folder; got {quoted(location)}. Export the model again."
        raise GraphError(text)


def _read_value_info(reader: Reader, message: Message) -> ValueInfo:
    fields = Fields(reader, message)
    sizes: tuple[Size, ...] | None = None
    element_type: ElementType = "float"
    for type_proto in fields.messages(2):
        for tensor_type in Fields(reader, type_proto).messages(1):  # sequences and maps have no one shape
            tensor = Fields(reader, tensor_type)
            element_type = ELEMENT_TYPES.get(tensor.unsigned(1), "float")
            for shape in tensor.messages(2):
                sizes = tuple([_read_size(reader, as_message(size)) for _, size in reader.fields(shape)])
    if sizes is not None and len(sizes) > MAXIMUM_RANK:
        raise WireError

    return ValueInfo(fields.text(1), sizes, element_type)


def _read_size(reader: Reader, message: Message) -> Size:
    """Return one dimension: a number, a name or an expression, or ``None`` where it is free."""
    for number, value in reader.fields(message):
        if number == 1:
            size = signed(as_unsigned(value))
            return size if size >= 0 else None
        if number == 2:  # dim_param
            return as_text(value) or None
    return None
