"""`make bench` runs every script of bench/ without options, on any machine."""

from __future__ import annotations

import re
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "bench"


def test_no_script_wants_an_option() -> None:
    """One that did ended `make bench` with click's own error."""
    wanting = [path.name for path in sorted(BENCH.glob("*.py")) if re.search(r"\brequired=True", path.read_text())]
    assert wanting == []
