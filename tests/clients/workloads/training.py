"""Stands for a training: fits a line, and where the model is large, runs out of memory on a share as PyTorch does.

`python training.py NAME` trains as a program; `from training import train` is for clients that run functions.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

LOG = Path(__file__).with_name("runs.log")
"""One line for each run: its name, and its part of the GPU in percent."""
SANDBOX = Path(__file__).parents[2]
DEVICE = SANDBOX / "jobs" / "devices" / "nvidia0"
"""Stands for the GPU where the node's sampler can see who opens it."""
LIMIT_S = 60.0


class OutOfMemoryError(RuntimeError):
    """As PyTorch's, which is a RuntimeError too."""


OutOfMemoryError.__module__ = "torch"


def use_gpu() -> None:
    """Open the GPU, and wait until the sampler has seen that: CUDA takes seconds to start, too."""
    with suppress(FileNotFoundError):
        DEVICE.open().close()
        seen = SANDBOX / "state" / "mps" / "ends" / os.environ["SLURM_JOB_ID"]
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s and f"gpu {os.getpid()}\n" not in (seen.read_text() if seen.exists() else ""):
            time.sleep(0.05)


def train(name: str) -> str:
    """Return the slope of a line, fitted by gradient descent."""
    percent = int(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") or 100)
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"{name} {percent}\n")
    if name.startswith("large") and percent < 100:
        use_gpu()
        message = "CUDA out of memory. Tried to allocate 2.00 GiB."
        raise OutOfMemoryError(message)
    slope = 0.0
    for _ in range(100):
        slope -= 0.1 * (slope - 3)
    return f"{name}: slope {slope:.3f}"


if __name__ == "__main__":
    print(train(sys.argv[1]))
