"""Dividing a GPU among jobs: the programs of a node, which may have no Python, and the limits read back there."""

import os
from pathlib import Path
from typing import Final

PROGRAM: Final = Path(__file__).parent / "gpusage-mps"
"""Program that divides a node's GPUs, for every workload manager."""

WALL: Final = Path(__file__).parent / "gpusage-wall"
"""What `PROGRAM` reads where it lies beside it: limits of memory."""

PROBE: Final = Path(__file__).parent / "probe.py"
"""Script that `PROGRAM` runs where the node has Python."""

LIBEXEC: Final = Path("/usr/libexec/gpusage")
"""Folder with each host's copies of these programs: an upgrade or a removal of gpusage deletes no copy."""


def libexec_folder() -> Path:
    """Return the folder that GPUSAGE_LIBEXEC names, as in a sandbox, or the usual folder."""
    named = os.environ.get("GPUSAGE_LIBEXEC")
    return Path(named) if named else LIBEXEC
