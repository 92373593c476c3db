"""Programs of others that submit jobs: fetched from PyPI and Maven Central on first use, kept in the cache.

Each has a virtual environment of its own, so that what it depends on never meets what gpusage depends on.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.host import cache_folder, lock
from gpusage_sandboxes.yarn.hadoop import find_java

NEXTFLOW = "24.10.0"
_LIMIT_S = 600
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>org.gpusage.tests</groupId><artifactId>nextflow</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>io.nextflow</groupId><artifactId>nextflow</artifactId><version>{version}</version></dependency>
  </dependencies>
</project>
"""
_COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_OPENED = ("lang", "io", "nio", "net", "util", "util.concurrent.locks")
"""What Nextflow's own launcher opens of java.base."""


def install_from_pypi(name: str, *requirements: str) -> Path:
    """Return the folder of the programs of a virtual environment with *requirements*; skip where it cannot be had."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    key = hashlib.sha256(" ".join([version, *requirements]).encode()).hexdigest()[:8]
    folder = cache_folder() / "clients" / f"{name}-{key}"
    complete = folder / "requirements.txt"
    with lock(folder):
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            uv = shutil.which("uv")
            if uv is None:
                pytest.skip(f"{name} is fetched by uv, which must be on the PATH: python3 -m pip install uv")
            _run(name, [uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
            python = str(folder / "bin" / "python")
            _run(name, [uv, "pip", "install", "--quiet", "--python", python, *requirements])
            complete.write_text("\n".join(requirements))
    return folder / "bin"


def install_nextflow() -> Path:
    """Return the folder of the program `nextflow`; skip where Java or Nextflow cannot be had."""
    try:
        java = find_java()
    except RequestError as error:
        pytest.skip(str(error))
    folder = cache_folder() / "clients" / f"nextflow-{NEXTFLOW}"
    program = folder / "bin" / "nextflow"
    with lock(folder):
        if not program.exists():
            shutil.rmtree(folder, ignore_errors=True)
            program.parent.mkdir(parents=True)
            pom = folder / "pom.xml"
            pom.write_text(_POM.format(version=NEXTFLOW))
            settings = (f"-Dmaven.repo.local={cache_folder() / 'maven'}", f"-DoutputDirectory={folder / 'jars'}")
            options = ("--quiet", "--batch-mode", f"--file={pom}", "-DincludeScope=runtime")
            _run("Nextflow", [str(java.maven), *options, *settings, _COPY_DEPENDENCIES], java.maven_environment())
            opened = " ".join(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED)
            options = f"-XX:TieredStopAtLevel=1 -XX:-UsePerfData {opened}"
            program.write_text(
                "#!/bin/sh\nexport NXF_OFFLINE=true NXF_ANSI_LOG=false\n"
                f"exec {java.program} {options} -cp '{folder}/jars/*' nextflow.cli.Launcher \"$@\"\n"
            )
            program.chmod(0o755)
    return program.parent


def _run(name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{name} cannot be fetched within {_LIMIT_S} s")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{name} cannot be fetched: {json.dumps((error.stderr or error.stdout)[-600:])}")
