"""The site's store of decisions and usage."""

from __future__ import annotations

from gpusage.store.numbers import RecordNumbers
from gpusage.store.opening import open_store

__all__ = [
    "RecordNumbers",
    "open_store",
]
