"""A client of the CUDA driver, which reports what it sees under given limits.

The same client asks once more where no MPS daemon listens, and so sees the whole GPU: the driver ignores a percentage
that no daemon enforces, and only a comparison shows that. No client makes a CUDA context, which would take a job's
memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from gpusage.node.dividing import PROBE
from gpusage.node.dividing.granted import ClientView, parse_client_view

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
"""In a client's environment: where its MPS daemon listens."""
_NOWHERE = "/nonexistent"
_LIMIT_S = 8.0
"""For one client: a GPU may hang."""


def query_client_view(limits: Mapping[str, str]) -> ClientView | None:
    """Return what a client sees whose variables ``CUDA_*`` are *limits*; ``None`` where none could be asked in time."""
    library = os.environ.get("GPUSAGE_CUDA_LIBRARY")
    command = [sys.executable, "-I", "-S", str(PROBE), *([library] if library else [])]
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **limits}
    try:
        done = subprocess.run(
            command,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=_LIMIT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_client_view(done.stdout)


def whole_sm_count(variables: Mapping[str, str]) -> int | None:
    """Return the SMs of the whole GPU that ``CUDA_*`` in *variables* name; ``None`` where the driver reports none."""
    device = {name: value for name, value in variables.items() if "_MPS_" not in name}
    seen = query_client_view({**device, PIPE_VARIABLE: _NOWHERE})
    return seen.sm_count if seen else None
