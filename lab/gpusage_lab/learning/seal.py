"""Families that nobody looks at while a predictor is changed, and how often somebody has looked.

What is chosen by a score makes that score too good. So about a quarter of the families is sealed: `gpusage evaluate`
leaves their rows out, and shows them only to those who name a file in which the look is counted.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from pathlib import Path

from gpusage_hooks.errors import RequestError

PART = 4
"""One family in so many is sealed."""


def is_sealed(family: str) -> bool:
    """Return whether *family* is sealed: its name alone decides, so that no score could draw it."""
    return int(hashlib.sha256(f"sealed {family}".encode()).hexdigest()[:8], 16) % PART == 0


def count_evaluation(counter: Path, targets: list[str]) -> None:
    """Append a line to *counter*: when it was looked, and at which *targets*.

    Raises:
        RequestError: The file cannot be written.
    """
    now = datetime.now(tz=timezone.utc).isoformat(timespec="seconds")
    try:
        with counter.open("a", encoding="utf-8") as file:
            file.write(f"{now} {','.join(targets)}\n")
    except OSError as error:
        message = (
            f"File '{counter}' must be one to which a look can be added; got one that cannot be written "
            f"({error.strerror}). Name another with --sealed."
        )
        raise RequestError(message) from error


def evaluation_count(counter: Path) -> int:
    """Return how many looks *counter* has."""
    return len(counter.read_text(encoding="utf-8").splitlines()) if counter.is_file() else 0
