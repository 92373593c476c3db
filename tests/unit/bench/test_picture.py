"""The picture of docs/architecture.md is drawn from the imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "bench"


def test_the_picture_shows_the_imports_as_they_are() -> None:
    """`python bench/picture.py` draws it anew."""
    command = [sys.executable, str(BENCH / "picture.py"), "--check"]
    assert subprocess.run(command, check=False, capture_output=True, text=True).stderr == ""
