"""A gate between processes: closed while a request is answered, so that training waits with its next step."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RECHECK_S = 50e-6
LONGEST_WAIT_S = 1.0
"""A gate that nobody opens again, because its process ended, must not hold training up for ever."""


class Gate:
    """One byte that two processes see."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(1)
            self._memory = mmap.mmap(file.fileno(), 1)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Close the gate for as long as the block runs."""
        self._memory[0] = 1
        try:
            yield
        finally:
            self._memory[0] = 0

    def wait(self) -> None:
        """Return when the gate is open."""
        until = time.monotonic() + LONGEST_WAIT_S
        while self._memory[0] and time.monotonic() < until:
            time.sleep(RECHECK_S)
