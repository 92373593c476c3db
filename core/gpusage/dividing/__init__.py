"""How a GPU is divided among jobs: what runs on a node, which may have no Python, and what is read back there."""

from pathlib import Path
from typing import Final

PROGRAM: Final = Path(__file__).parent / "gpusage-mps"
"""What runs on a node to divide its GPUs, for every workload manager."""

PROBE: Final = Path(__file__).parent / "probe.py"
"""What it runs, beside it, where the node has Python."""
