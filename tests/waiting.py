"""Waiting for what other processes do in their own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LIMIT_S = 300.0
"""A loaded machine needs many seconds for what takes one elsewhere; where all is well, nobody waits for them."""
_POLL_S = 0.05


def wait_until(condition: Callable[[], T | None], evidence: Callable[[], object] = str, limit_s: float = LIMIT_S) -> T:
    """Wait until *condition* returns something true, and return that: read again, it may be false once more.

    Where it never does, the failure shows what *evidence* returns.
    """
    deadline_s = time.monotonic() + limit_s
    while not (seen := condition()):
        assert time.monotonic() < deadline_s, f"it never happened: {evidence()}"
        time.sleep(_POLL_S)
    return seen
