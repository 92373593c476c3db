"""Waiting for what other processes do in their own time."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 120.0
"""A loaded machine needs many seconds for what takes one elsewhere; where all is well, nobody waits for them."""
_POLL_S = 0.05


def wait_until(condition: Callable[[], object], evidence: Callable[[], object] = str, limit_s: float = LIMIT_S) -> None:
    """Wait until *condition* holds; where it never does, the failure shows what *evidence* returns."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"it never happened: {evidence()}"
        time.sleep(_POLL_S)
