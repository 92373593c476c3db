"""A journal of cards that are being made, one line each, so that it can be stopped and run again."""

from __future__ import annotations

from pathlib import Path


def read(path: Path) -> dict[str, str]:
    """Return the cards by key; a line that was cut off is left out, and a journal that is not there is empty."""
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return dict(line.partition("\t")[::2] for line in lines if line.endswith("}"))


def add(path: Path, key: str, card: str) -> None:
    """Add one card."""
    with path.open("a", encoding="ascii") as file:
        file.write(f"{key}\t{card}\n")
