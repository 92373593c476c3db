"""Strangers' plugins, built and installed as strangers do."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from waiting import LIMIT_S

BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Return what installs the project in a folder: its own wheel, from its own pyproject.toml, unpacked.

    That is what `pip install --target` does with a wheel of pure Python; without pip, it needs no network.
    """

    def installed(source: Path) -> Path:
        work = tmp_path_factory.mktemp(source.name)
        project, target = work / "project", work / "installed"
        shutil.copytree(source, project)
        command = [sys.executable, "-c", BUILD, str(work)]
        subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=LIMIT_S)
        (wheel,) = work.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
        return target

    return installed
