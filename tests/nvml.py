"""A library that answers NVML's calls through the real pynvml, from a text file: the device alone is faked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from waiting import LIMIT_S

SOURCE = Path(__file__).parent / "standins" / "nvml.c"


def built_nvml(folder: Path) -> Path:
    """Compile the library into *folder*, and return the folder, for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the stand-in for NVML needs a C compiler")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(command, check=True, timeout=LIMIT_S)
    return folder
