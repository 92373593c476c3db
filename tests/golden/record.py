"""Remake the golden files of the commands; read `git diff` afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

if __name__ == "__main__":
    sys.exit(
        subprocess.run([sys.executable, "-m", "pytest", "-q", "--update-golden", str(HERE)], check=False).returncode
    )
