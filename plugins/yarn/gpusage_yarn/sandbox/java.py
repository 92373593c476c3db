"""The Java that a sandbox runs on, and Maven: the host's own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpusage_hooks.errors import RequestError

_VERSIONS = range(11, 23)  # Hadoop 3.4.2 wants the options of 9 and later, and a class library of 22 and earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java with its compiler, and the Maven that goes with it.

    Attributes:
        home: What JAVA_HOME is set to.
        maven: The program.
    """

    home: Path
    maven: Path

    @property
    def program(self) -> Path:
        """The launcher."""
        return self.home / "bin" / "java"

    def maven_environment(self) -> dict[str, str]:
        """Return what Maven is run with: this Java, which leaves no file in the machine's own temporary folder."""
        options = f"{os.environ.get('MAVEN_OPTS', '')} -XX:-UsePerfData".strip()
        return {**os.environ, "JAVA_HOME": str(self.home), "MAVEN_OPTS": options}


def find_java() -> Java:
    """Return the host's JDK, from JAVA_HOME or PATH, and its Maven.

    Raises:
        RequestError: One of them is missing, or the JDK is of a version that Hadoop does not run on.
    """
    named = os.environ.get("JAVA_HOME")
    compiler = Path(named) / "bin" / "javac" if named else Path(shutil.which("javac") or "")
    maven = shutil.which("mvn")
    missing = [name for name, there in (("javac", compiler.is_file()), ("mvn", maven)) if not there]
    if missing or maven is None:
        message = (
            f"The YARN sandbox needs a JDK of version {_VERSIONS.start} to {_VERSIONS.stop - 1} and Maven; "
            f"{' and '.join(missing)} not found by JAVA_HOME and PATH. Install openjdk-17-jdk-headless and maven."
        )
        raise RequestError(message)
    home = compiler.resolve().parent.parent
    version = java_version(home)
    if version not in _VERSIONS:
        message = (
            f"The JDK must be of version {_VERSIONS.start} to {_VERSIONS.stop - 1} for Hadoop; {home} has {version}. "
            "Name another one with JAVA_HOME."
        )
        raise RequestError(message)
    return Java(home=home, maven=Path(maven))


def java_version(home: Path) -> int:
    """Return the major version of the Java in *home*, 0 where it does not say."""
    release = home / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    if "JAVA_VERSION=" not in text:
        done = subprocess.run([home / "bin" / "java", "-version"], check=False, capture_output=True, text=True)
        text = done.stderr
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0
