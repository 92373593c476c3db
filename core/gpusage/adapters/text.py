"""Text from outside, made printable."""

from __future__ import annotations

from gpusage.boundary.printable_text import one_line, visible

__all__ = [
    "one_line",
    "visible",
]
