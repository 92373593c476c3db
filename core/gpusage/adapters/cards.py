"""Cards, the descriptions of models that travel with jobs."""

from __future__ import annotations

from gpusage.graphs.card.error import ERROR_MARK, decode_error
from gpusage.graphs.card.text import decode

__all__ = [
    "ERROR_MARK",
    "decode",
    "decode_error",
]
