"""What else divides this node's GPUs: MPS daemons that are not gpusage's, and compute modes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpusage.node.dividing.granted import FOLDER

_CONTROL = "nvidia-cuda-mps-control"
_DAEMON_OPTIONS = {"-d", "-f"}
_USUAL_PIPE = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's own default
_LIMIT_S = 5.0


def foreign_mps_daemons(processes: Path = Path("/proc")) -> Iterator[str]:
    """Yield each MPS control daemon of this node that gpusage did not start, as ``4711 (/tmp/nvidia-mps)``.

    Only root sees where another user's daemon has its pipes; one that this user may not look into is left out.
    """
    ours = Path(os.environ.get("GPUSAGE_MPS_FOLDER", FOLDER))
    for process in processes.glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_text(errors="replace").split("\0")

            # The program may be a script, so its name may be the second word.
            if _CONTROL not in {Path(word).name for word in words[:2]} or _DAEMON_OPTIONS.isdisjoint(words):
                continue
            variables = (process / "environ").read_text(errors="replace").split("\0")
            pipe = dict(word.partition("=")[::2] for word in variables).get("CUDA_MPS_PIPE_DIRECTORY") or _USUAL_PIPE
            if not Path(pipe).is_relative_to(ours):
                yield f"{process.name} ({pipe})"


def exclusive_gpus() -> Iterator[str]:
    """Yield each GPU of this node whose compute mode lets not every program in, as ``0 (Exclusive_Process)``."""
    command = ("nvidia-smi", "--query-gpu=index,compute_mode", "--format=csv,noheader")
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
        for line in done.stdout.splitlines():
            index, _, mode = line.partition(", ")
            if mode.startswith(("Exclusive", "Prohibited")):
                yield f"{index} ({mode})"
