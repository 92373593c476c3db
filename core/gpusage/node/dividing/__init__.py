"""How a GPU is divided among jobs: what runs on a node, which may have no Python, and what is read back there."""

import os
from pathlib import Path
from typing import Final

PROGRAM: Final = Path(__file__).parent / "gpusage-mps"
"""What runs on a node to divide its GPUs, for every workload manager."""

PROBE: Final = Path(__file__).parent / "probe.py"
"""What it runs, beside it, where the node has Python."""

LIBEXEC: Final = Path("/usr/libexec/gpusage")
"""Where each host has copies of what a workload manager runs: an upgrade of gpusage takes none of them away."""


def libexec_folder() -> Path:
    """Return the folder that GPUSAGE_LIBEXEC names, as in a sandbox, or the usual one."""
    named = os.environ.get("GPUSAGE_LIBEXEC")
    return Path(named) if named else LIBEXEC
