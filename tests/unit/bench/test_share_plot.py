"""`bench/share_plot.py`: the committed plot of docs/shares.md is what the command makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_committed_plot_is_as_the_command_makes_it_and_the_page_shows_it() -> None:
    command = [sys.executable, ROOT / "bench" / "share_plot.py"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "(shares.svg)" in (ROOT / "docs" / "shares.md").read_text(encoding="utf-8")
