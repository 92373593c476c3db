"""What commands import before they run: sbatch waits for ``gpusage job-card``."""

from __future__ import annotations

import subprocess
import sys


def test_job_card_does_without_the_packages_metadata() -> None:
    """`importlib.metadata` brings email, zipfile and socket: a fifth of the command's time."""
    script = "import sys, gpusage.cli, gpusage.cli.cards.job_card; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"importlib.metadata", "numpy", "msgspec"}.isdisjoint(result.stdout.split())
