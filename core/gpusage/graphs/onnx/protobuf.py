"""Protocol-buffer messages, read field by field from a file, without what is large.

1. A message that fits `INLINE_BYTES` is read whole; of a larger one only the fields' headers are, wherever they stand.
   So weights inside the file cost one seek each and no memory.
2. Every field that is looked at and every byte that is read counts against a budget, so that no file, however made,
   takes long or much memory.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from gpusage_hooks.errors import GraphError

INLINE_BYTES = 16 * 1024
MAXIMUM_FIELDS = 1_500_000
MAXIMUM_BYTES = 128 * 1024 * 1024

_WINDOW_BYTES = 16 * 1024
_HEADER_BYTES = 20
_VARINT_BYTES = 10
_SEVEN_BITS = 0x7F  # the eighth says that more follows
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_KINDS = (_VARINT, _FIXED64, _LENGTH, _FIXED32)
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_FEW = 16  # real numbers that a shape may depend on: a scale an axis
_FIRST_KEY = 8  # field numbers begin at 1


class WireError(Exception):
    """Say that bytes are not a protocol-buffer message, or that it is cut off."""


@dataclass(frozen=True, slots=True)
class Span:
    """A message that stays in the file: where it starts and ends."""

    start: int
    end: int


Message = bytes | Span
Field = int | bytes | Span


class Reader:
    """Gives the fields of messages in one file, and counts them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._fields_left = MAXIMUM_FIELDS
        self._bytes_left = MAXIMUM_BYTES

    def whole(self) -> Span:
        """Return the file as one message."""
        return Span(0, os.fstat(self._descriptor).st_size)

    def fields(self, message: Message) -> Iterator[tuple[int, Field]]:
        """Return each field's number with its value: a whole number, or bytes, or a span of the file.

        Raises:
            WireError: The message is malformed or cut off.
            GraphError: The file has more fields than any model.
        """
        return self._in_file(message) if isinstance(message, Span) else self._in_memory(message)

    def wholes(self, value: Field) -> list[int]:
        """Return the signed numbers of a repeated field, which stand alone or packed; each counts as a field."""
        if isinstance(value, int):
            return [signed(value)]
        if isinstance(value, Span):
            raise WireError
        numbers = []
        position = 0
        while position < len(value):
            number, position = varint(value, position)
            numbers.append(signed(number))
        self.spend(len(numbers))
        return numbers

    def reals(self, value: Field) -> tuple[float, ...]:
        """Return the single-precision numbers of a repeated field, which stand alone or packed, where they are few."""
        if not isinstance(value, bytes) or len(value) % _WIDTHS[_FIXED32]:
            raise WireError
        count = len(value) // _WIDTHS[_FIXED32]
        if count > _FEW:
            return ()
        self.spend(count)
        return struct.unpack(f"<{count}f", value)

    def spend(self, count: int) -> None:
        """Take *count* fields from the budget.

        Raises:
            GraphError: It is spent.
        """
        self._fields_left -= count
        if self._fields_left < 0:
            message = f"Model must have at most {MAXIMUM_FIELDS} protobuf fields; got more. Simplify the graph."
            raise GraphError(message)

    def _in_memory(self, message: bytes) -> Iterator[tuple[int, Field]]:
        position, end = 0, len(message)
        while position < end:
            key = message[position]
            position += 1
            if key > _SEVEN_BITS:
                key, position = varint(message, position - 1)
            kind = self._counted(key)
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
        window, base = b"", 0
        position = message.start
        while position < message.end:
            if position + _HEADER_BYTES > base + len(window):
                window, base = self._read(position, _WINDOW_BYTES), position
            key, offset = varint(window, position - base)
            kind = self._counted(key)
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

    def _counted(self, key: int) -> int:
        """Count one field against the budget, and return how its value is laid out."""
        self._fields_left -= 1
        kind = key & 7
        if key < _FIRST_KEY or kind not in _KINDS or self._fields_left < 0:
            self.spend(0)
            raise WireError
        return kind


def varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the whole number that begins at *position*, and where it ends."""
    try:
        value = message[position]
        if value <= _SEVEN_BITS:
            return value, position + 1
        value &= _SEVEN_BITS
        for index in range(1, _VARINT_BYTES):
            byte = message[position + index]
            value |= (byte & _SEVEN_BITS) << (7 * index)
            if byte <= _SEVEN_BITS:
                return value & 0xFFFF_FFFF_FFFF_FFFF, position + index + 1
    except IndexError as error:
        raise WireError from error
    raise WireError


def signed(value: int) -> int:
    """Return *value*, read as unsigned, as the signed 64-bit number that was meant."""
    return value - 2**64 if value >= 2**63 else value


def message_of(value: Field) -> Message:
    """Return the message that a field holds."""
    if isinstance(value, int):
        raise WireError
    return value


def text_of(value: Field) -> str:
    """Return the text that a field holds."""
    if not isinstance(value, bytes):
        raise WireError
    return value.decode()


def whole_of(value: Field) -> int:
    """Return the unsigned number that a field holds."""
    if not isinstance(value, int):
        raise WireError
    return value


def real_of(value: Field) -> float:
    """Return the single-precision number that a field holds."""
    if not isinstance(value, bytes) or len(value) != _WIDTHS[_FIXED32]:
        raise WireError
    real: float = struct.unpack("<f", value)[0]
    return real
