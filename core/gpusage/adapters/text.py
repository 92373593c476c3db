"""Text and documents from outside: made printable, and read into typed values."""

from __future__ import annotations

from gpusage.boundary.printable_text import one_line, visible
from gpusage.boundary.typed_documents import MismatchError, read_as

__all__ = [
    "MismatchError",
    "one_line",
    "read_as",
    "visible",
]
