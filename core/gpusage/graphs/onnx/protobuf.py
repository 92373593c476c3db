"""Protocol-buffer messages, read field by field from a file without their large parts.

1. A message of at most `INLINE_BYTES` is read whole, a larger one by the headers of its fields alone. So weights
   inside the file cost one seek each and no memory.
2. Each field and each byte counts against a budget, so that no file, however made, takes long or much memory.

Why not the onnx package: docs/decisions/graphs.md.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from gpusage_hooks.errors import GraphError

INLINE_BYTES = 16 * 1024
MAXIMUM_FIELDS = 1_500_000
MAXIMUM_BYTES = 128 * 1024 * 1024

_WINDOW_BYTES = 16 * 1024
_HEADER_BYTES = 20  # of a field: two varints at most
_VARINT_BYTES = 10
_SEVEN_BITS = 0x7F  # the eighth bit says that another byte follows
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_KINDS = (_VARINT, _FIXED64, _LENGTH, _FIXED32)
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_MAXIMUM_FLOATS = 16  # of an attribute that a shape may depend on: one scale for each axis
_FIRST_KEY = 8  # field numbers begin at 1


class WireError(Exception):
    """Bytes are not a protocol-buffer message, or it is cut off."""


@dataclass(frozen=True, slots=True)
class Span:
    """A message that stays in the file, from *start* to *end*."""

    start: int
    end: int


Message = bytes | Span
Field = int | bytes | Span


class Reader:
    """Reads the fields of messages in a file, and counts them against the budget."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._fields_left = MAXIMUM_FIELDS
        self._bytes_left = MAXIMUM_BYTES

    def fields(self, message: Message) -> Iterator[tuple[int, Field]]:
        """Return each field's number with its value: an integer, bytes, or a span of the file.

        Raises:
            WireError: The message is malformed or cut off.
            GraphError: The file has more fields than any real model.
        """
        return self._in_file(message) if isinstance(message, Span) else self._in_memory(message)

    def integers(self, value: Field) -> list[int]:
        """Return the signed integers of a repeated field, packed or not; each counts as a field."""
        if isinstance(value, int):
            return [signed(value)]
        if isinstance(value, Span):
            raise WireError

        # A packed field is one run of varints; an unpacked one comes here once an element.
        elements = []
        position = 0
        while position < len(value):
            number, position = varint(value, position)
            elements.append(signed(number))
        self.charge(len(elements))
        return elements

    def floats(self, value: Field) -> tuple[float, ...]:
        """Return the single-precision numbers of a repeated field, packed or not; empty if there are many."""
        if not isinstance(value, bytes) or len(value) % _WIDTHS[_FIXED32]:
            raise WireError
        count = len(value) // _WIDTHS[_FIXED32]
        if count > _MAXIMUM_FLOATS:
            return ()
        self.charge(count)
        return struct.unpack(f"<{count}f", value)

    def charge(self, count: int) -> None:
        """Charge *count* fields to the budget.

        Raises:
            GraphError: The budget is used up.
        """
        self._fields_left -= count
        if self._fields_left < 0:
            message = f"Model must have at most {MAXIMUM_FIELDS} protobuf fields; got more. Simplify the graph."
            raise GraphError(message)

    def ends(self, content: Message, length: int) -> bytes:
        """Return the first and the last *length* bytes of *content*."""
        if isinstance(content, bytes):
            return content[:length] + content[-length:]
        return self._read(content.start, length) + self._read(content.end - length, length)

    def _in_memory(self, message: bytes) -> Iterator[tuple[int, Field]]:
        position, end = 0, len(message)
        while position < end:
            # Nearly all keys have one byte, and this loop runs for each field of a model.
            key = message[position]
            position += 1
            # Nearly all keys have one byte, which needs no call.
            if key > _SEVEN_BITS:
                key, position = varint(message, position - 1)
            kind = self._field_kind(key)
            if kind == _VARINT:
                value, position = varint(message, position)
                yield key >> 3, value
                continue

            length, position = varint(message, position) if kind == _LENGTH else (_WIDTHS[kind], position)
            stop = position + length
            if stop > end:
                raise WireError

            yield key >> 3, message[position:stop]
            position = stop

    def _in_file(self, message: Span) -> Iterator[tuple[int, Field]]:
        # Headers are read in windows: alone, each would be a call of the system.
        window, base = b"", 0
        position = message.start
        while position < message.end:
            # One read serves many small fields; a large one is skipped.
            if position + _HEADER_BYTES > base + len(window):
                window, base = self._read(position, _WINDOW_BYTES), position
            key, offset = varint(window, position - base)
            kind = self._field_kind(key)
            if kind == _VARINT:
                value, offset = varint(window, offset)
                yield key >> 3, value
                position = base + offset
                continue

            length, offset = varint(window, offset) if kind == _LENGTH else (_WIDTHS[kind], offset)
            start, position = base + offset, base + offset + length
            if position > message.end:
                raise WireError

            if length > INLINE_BYTES:
                yield key >> 3, Span(start, position)
            elif offset + length <= len(window):
                yield key >> 3, window[offset : offset + length]
            else:
                yield key >> 3, self._read(start, length)

    def _read(self, position: int, length: int) -> bytes:
        self._bytes_left -= length
        if self._bytes_left < 0:
            message = f"Model must have at most {MAXIMUM_BYTES} bytes beside its weights; got more. Simplify the graph."
            raise GraphError(message)
        return os.pread(self._descriptor, length, position)

    def _field_kind(self, key: int) -> int:
        """Count a field against the budget, and return the wire type of its value."""
        self._fields_left -= 1
        kind = key & 7
        # All three faults in one line, for it runs once a field.
        if key < _FIRST_KEY or kind not in _KINDS or self._fields_left < 0:
            # An exceeded budget has an error of its own.
            self.charge(0)
            raise WireError
        return kind


class Fields(defaultdict[int, list[Field]]):
    """The fields of a small message by their numbers; the last of several scalars counts, as protobuf demands."""

    def __init__(self, reader: Reader, message: Message) -> None:
        super().__init__(list)
        self._reader = reader
        for number, value in reader.fields(message):
            self[number].append(value)

    def text(self, number: int) -> str:
        """Return the text in field *number*, or ``""``."""
        return as_text(self[number][-1]) if self[number] else ""

    def texts(self, number: int) -> tuple[str, ...]:
        """Return the texts in the repeated field *number*."""
        return tuple(map(as_text, self[number]))

    def messages(self, number: int) -> list[Message]:
        """Return the messages in field *number*."""
        return list(map(as_message, self[number]))

    def unsigned(self, number: int, default: int = 0) -> int:
        """Return the unsigned integer in field *number*, or *default*."""
        return as_unsigned(self[number][-1]) if self[number] else default

    def integers(self, number: int) -> list[int]:
        """Return the signed integers in the repeated field *number*."""
        return [element for value in self[number] for element in self._reader.integers(value)]


def varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the unsigned integer that begins at *position*, and the position after it."""
    try:
        value = message[position]
        if value <= _SEVEN_BITS:
            return value, position + 1

        # Seven bits a byte, the lowest first; ten bytes hold 64 bits, and more bits than these do not count.
        value &= _SEVEN_BITS
        # Ten bytes hold 64 bits; a longer varint is no number.
        for index in range(1, _VARINT_BYTES):
            byte = message[position + index]
            value |= (byte & _SEVEN_BITS) << (7 * index)
            if byte <= _SEVEN_BITS:
                return value & 0xFFFF_FFFF_FFFF_FFFF, position + index + 1
    except IndexError as error:
        raise WireError from error
    raise WireError


def signed(value: int) -> int:
    """Return the 64 bits of the unsigned *value* as a signed integer."""
    return value - 2**64 if value >= 2**63 else value


def as_message(value: Field) -> Message:
    """Return the *value* of a field that holds a message.

    Raises:
        WireError: The field holds something else.
    """
    if isinstance(value, int):
        raise WireError
    return value


def as_text(value: Field) -> str:
    """Return the text of a field; errors as `as_message`."""
    if not isinstance(value, bytes):
        raise WireError
    return value.decode()


def as_unsigned(value: Field) -> int:
    """Return the unsigned integer of a field; errors as `as_message`."""
    if not isinstance(value, int):
        raise WireError
    return value


def as_float(value: Field) -> float:
    """Return the single-precision number of a field; errors as `as_message`."""
    if not isinstance(value, bytes) or len(value) != _WIDTHS[_FIXED32]:
        raise WireError
    (number,) = struct.unpack("<f", value)
    return float(number)
