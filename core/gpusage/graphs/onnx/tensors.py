"""The small values in an ONNX file: constants and declared shapes.

Weights are never decoded, whether they stand inside the file or beside it; of external data only the place is checked.
Field numbers are those of the ONNX project's `onnx.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from gpusage.graphs.guard import MAXIMUM_RANK, check_shape, shown
from gpusage.graphs.onnx.protobuf import Field, Message, Reader, WireError, message_of, signed, text_of, whole_of
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ElementType, Shape

MAXIMUM_VALUES = 4096

Number = int | float
Size = int | str | None
"""Of a declared dimension: fixed, named, or free."""

_FLOAT, _UINT8, _INT8, _INT32, _INT64, _STRING, _BOOL, _DOUBLE = 1, 2, 3, 6, 7, 8, 9, 11
_RAW = {_FLOAT: "f", _DOUBLE: "d", _INT64: "q", _INT32: "i", _BOOL: "?"}
_LIMITS = {_INT64: MAXIMUM_VALUES, _INT32: 64, _BOOL: 64, _FLOAT: 16, _DOUBLE: 16}
"""Elements that are kept, by type: shapes are computed from few, most of them whole."""
ELEMENT_TYPES: Mapping[int, ElementType] = {
    **dict.fromkeys((_INT64, 13, _STRING), "int64"),
    **dict.fromkeys((_INT32, 12, 4, 5), "int32"),
    **dict.fromkeys((_INT8, _UINT8, 21, 22), "int8"),
    _BOOL: "bool",
}


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """A constant: its shape and type, and its values where they are few."""

    name: str
    shape: Shape
    element_type: ElementType
    values: tuple[Number, ...] | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """What the file says of a value's shape; ``None`` where it says nothing."""

    name: str
    sizes: tuple[Size, ...] | None
    element_type: ElementType


def read_tensor(reader: Reader, message: Message) -> OnnxTensor:
    """Return a constant of any size; a large one's elements stay where they are.

    Raises:
        GraphError: Its shape is beyond the limits, or its place outside the model's folder.
    """
    name, data_type, external = "", _FLOAT, False
    sizes: list[int] = []
    held: list[Field] = []
    raw: Field = b""
    for number, value in reader.fields(message):
        match number:
            case 1:
                sizes.extend(reader.wholes(value))
            case 2:
                data_type = whole_of(value)
            case 4 | 5 | 7 | 10:
                held.append(value)
            case 8:
                name = text_of(value)
            case 9:
                raw = value
            case 13:
                external = True
                _check_external(reader, message_of(value))
    shape = _checked(sizes, name)
    count = prod(shape)
    limit = _LIMITS.get(data_type, 0)
    values = None if external or count > limit else _elements(reader, data_type, held, raw)
    known = values if values is not None and len(values) == count else None
    return OnnxTensor(name, shape, ELEMENT_TYPES.get(data_type, "float"), known)


def _checked(sizes: list[int], name: str) -> Shape:
    shape = check_shape(sizes, f"Tensor {shown(name)}")
    if min(shape, default=0) < 0:
        text = f"Tensor {shown(name)} must have sizes of at least 0; got {min(shape)}. Export the model again."
        raise GraphError(text)
    return shape


def _elements(reader: Reader, data_type: int, held: list[Field], raw: Field) -> tuple[Number, ...] | None:
    """Return the elements of a small constant, from its raw bytes or from the field of its type."""
    if raw:
        content, letter = raw, _RAW[data_type]
    elif data_type in {_FLOAT, _DOUBLE}:
        content, letter = b"".join(one for one in held if isinstance(one, bytes)), _RAW[data_type]
    else:
        return tuple(number for one in held for number in reader.wholes(one))
    if not isinstance(content, bytes) or len(content) % struct.calcsize(letter):
        return None
    count = len(content) // struct.calcsize(letter)
    reader.spend(count)
    return struct.unpack(f"<{count}{letter}", content)


def _check_external(reader: Reader, message: Message) -> None:
    if isinstance(message, bytes) and b"location" not in message:
        return
    entry = {number: text_of(value) for number, value in reader.fields(message) if number in {1, 2}}
    if entry.get(1) == "location":
        check_location(entry.get(2, ""))


def read_sparse_tensor(reader: Reader, message: Message) -> OnnxTensor:
    """Return a sparse constant as a dense one, which is how it is computed with."""
    sizes: list[int] = []
    inner: OnnxTensor | None = None
    for number, value in reader.fields(message):
        match number:
            case 1:
                inner = read_tensor(reader, message_of(value))
            case 3:
                sizes.extend(reader.wholes(value))
    if inner is None:
        raise WireError
    return OnnxTensor(inner.name, _checked(sizes, inner.name), inner.element_type)


def read_declared(reader: Reader, message: Message) -> Declared:
    """Return what a value's description in the file says of its shape."""
    name = ""
    sizes: tuple[Size, ...] | None = None
    element_type: ElementType = "float"
    for number, value in reader.fields(message):
        match number:
            case 1:
                name = text_of(value)
            case 2:
                kinds = dict(reader.fields(message_of(value)))
                if 1 in kinds:  # a tensor; sequences and maps have no one shape
                    sizes, element_type = _tensor_type(reader, message_of(kinds[1]))
    return Declared(name, sizes, element_type)


def _tensor_type(reader: Reader, message: Message) -> tuple[tuple[Size, ...] | None, ElementType]:
    sizes: tuple[Size, ...] | None = None
    element_type: ElementType = "float"
    for number, value in reader.fields(message):
        match number:
            case 1:
                element_type = ELEMENT_TYPES.get(whole_of(value), "float")
            case 2:
                sizes = tuple(_size(reader, message_of(inner)) for _, inner in reader.fields(message_of(value)))
    if sizes is not None and len(sizes) > MAXIMUM_RANK:
        raise WireError
    return sizes, element_type


def _size(reader: Reader, message: Message) -> Size:
    for number, value in reader.fields(message):
        match number:
            case 1:
                size = signed(whole_of(value))
                return size if size >= 0 else None
            case 2:
                return text_of(value) or None
    return None


def check_location(location: str) -> None:
    """Refuse a *location* of weights that lies outside the model's own folder.

    Raises:
        GraphError: The location is absolute or leads upward.
    """
    parts = location.replace("\\", "/").split("/")
    if not parts[0] or ".." in parts or "\0" in location:
        message = f"External data must lie in the model's own folder; got {shown(location)}. Export the model again."
        raise GraphError(message)
