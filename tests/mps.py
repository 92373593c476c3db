"""A node's MPS without a GPU: stand-ins for NVIDIA's control daemon and for the CUDA driver, for all tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

STANDINS = Path(__file__).parent / "standins"
PROGRAM = Path(__file__).parents[1] / "core/gpusage/node/dividing/gpusage-mps"
GPU = "GPU-8932f937-d72c-4106"
"""The one whose partitions the stand-in shows."""


def control_in(folder: Path) -> Path:
    """Return a copy of the stand-in for the control daemon in *folder*, under its real name; its log lies beside it."""
    return Path(shutil.copy(STANDINS / "nvidia-cuda-mps-control", folder))


def driver_in(folder: Path, *options: str) -> Path | None:
    """Return a stand-in for the CUDA driver in *folder*, under its real name; ``None`` where there is no C compiler.

    Args:
        folder: Where the library is written.
        options: Of the compiler: with ``-DIGNORES_DAEMONS``, no MPS daemon holds a client of this driver.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", *options, "-o", library, STANDINS / "libcuda.c"], check=True)
    return library


def commands_sent(control: Path) -> list[str]:
    """Return what the stand-in *control* was told."""
    log = control.with_name(f"{control.name}.log")
    return log.read_text().splitlines() if log.exists() else []


def waiting_for_cgroups(folder: Path) -> list[int]:
    """Return the processes `gpusage-mps wall` of the node whose `gpusage-mps` writes to *folder*."""
    mark = os.fsencode(f"GPUSAGE_MPS_FOLDER={folder}\0")

    def waits(process: Path) -> bool:
        try:
            if os.getsid(int(process.name)) != int(process.name):
                return False  # a shell below it
            return b"\0wall\0" in (process / "cmdline").read_bytes() and mark in (process / "environ").read_bytes()
        except OSError:  # it has just ended
            return False

    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if waits(process)]
