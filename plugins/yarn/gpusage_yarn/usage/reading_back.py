"""What holds a container to its share, as a client with its variables sees it: asked by the probe of Slurm's nodes.

The same client asks once more where no MPS daemon listens, and so sees the whole GPU: a percentage that nobody holds is
silently ignored, and only the difference tells. The probe makes no CUDA context, which would take the job's memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

from gpusage.dividing import PROBE
from gpusage.dividing.granted import NOT_READ_BACK, Seen, limit_bytes, parse_seen, read_back
from gpusage_hooks.types import Granted
from gpusage_hooks.units import WHOLE_PERCENT

_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_NOWHERE = "/nonexistent"
_LIMIT_S = 8.0
"""For one client: a GPU may hang."""


def granted_to(share_percent: int, environment: Mapping[str, str]) -> Granted:
    """Return what a container with a share of *share_percent* really has.

    Args:
        share_percent: As YARN booked it.
        environment: Of this process, in which the NodeManager set the container's own variables ``CUDA_*``; it has
            none of them where the container runs as another user, whose MPS daemon our client must not keep waiting.
    """
    if share_percent >= WHOLE_PERCENT:
        return Granted()
    limits = {name: value for name, value in environment.items() if name.startswith("CUDA_")}
    percent = limits.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")
    given = Granted(
        division="percentage",
        share_percent=share_percent,
        thread_percent=int(percent) if percent.isdecimal() else None,
        memory_limit_bytes=limit_bytes(limits.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")),
    )
    if _PIPE not in limits:
        return replace(given, trouble=NOT_READ_BACK)
    whole = _seen({name: value for name, value in limits.items() if "_MPS_" not in name} | {_PIPE: _NOWHERE})
    return read_back(given, _seen(limits), whole.sm_count if whole else None)


def _seen(limits: Mapping[str, str]) -> Seen | None:
    """Return what a client with these *limits* sees; ``None`` where none could be asked in time."""
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
    return parse_seen(done.stdout)
