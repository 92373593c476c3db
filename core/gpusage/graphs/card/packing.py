"""Compresses bytes and unpacks them, never to more than asked; the first byte names the method."""

from __future__ import annotations

import zlib

try:
    import lzma
except ImportError:  # a Python may be built without it
    lzma = None  # type: ignore[assignment]

_LZMA_MARK = b"\x5d"  # literal context 3, literal position 0, position 2: what the filter below always writes
_DICTIONARY_BYTES = 1024 * 1024
_MEMORY_BYTES = 8 * 1024 * 1024


def pack(content: bytes) -> bytes:
    """Return *content* compressed, the smaller of the two ways that this Python knows."""
    deflated = zlib.compress(content, 9)
    if lzma is None:
        return deflated
    way = {"id": lzma.FILTER_LZMA1, "dict_size": _DICTIONARY_BYTES, "lc": 3, "lp": 0, "pb": 2, "nice_len": 273}
    return min(lzma.compress(content, lzma.FORMAT_ALONE, filters=[way]), deflated, key=len)


def unpack(packed: bytes, limit_bytes: int) -> bytes | None:
    """Return what was packed, ``None`` where it is cut off or larger than *limit_bytes*.

    Raises:
        ValueError: It was not packed here.
    """
    if packed.startswith(_LZMA_MARK):
        return _unpack_lzma(packed, limit_bytes)
    try:
        inflater = zlib.decompressobj()
        content = inflater.decompress(packed, limit_bytes + 1)
    except zlib.error as error:
        raise ValueError from error
    return content if inflater.eof and len(content) <= limit_bytes else None


def _unpack_lzma(packed: bytes, limit_bytes: int) -> bytes | None:
    if lzma is None:
        raise ValueError
    try:
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=_MEMORY_BYTES)
        content = decompressor.decompress(packed, limit_bytes + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError from error
    return content if decompressor.eof and len(content) <= limit_bytes else None
