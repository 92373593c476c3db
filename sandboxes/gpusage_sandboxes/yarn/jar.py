"""Our own jar: of a checkout, built from it; of another installation, the one that the wheel brought."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.host import cache_folder, lock
from gpusage_sandboxes.yarn.hadoop import prepare_java
from gpusage_yarn.jar import SOURCES, in_checkout, jar_instructions, packaged_jar


def find_jar() -> Path:
    """Return the jar of this installation; in a checkout, the one that is built from it.

    Raises:
        RequestError: This installation holds no jar, or Maven cannot build it.
    """
    if in_checkout():
        return build_jar()
    jar = packaged_jar()
    if jar is None:
        raise RequestError(jar_instructions())
    return jar


def build_jar() -> Path:
    """Return the jar of this checkout, built by Maven unless it is newer than everything that it is built from.

    Raises:
        RequestError: Java or Maven is missing, or Maven cannot build it.
    """
    pom = SOURCES / "pom.xml"
    with lock(cache_folder().absolute() / "gpusage-yarn-jar"):
        newest = max(path.stat().st_mtime for path in [pom, *(SOURCES / "src").rglob("*")])
        jar = _jar()
        if jar is None or jar.stat().st_mtime < newest:
            _build(pom)
            jar = _jar()

    if jar is None:
        message = f"Maven must leave a jar in {SOURCES / 'target'}; it left none. Build it there: mvn package."
        raise RequestError(message)
    return jar


def _jar() -> Path | None:
    jars = [path for path in (SOURCES / "target").glob("gpusage-yarn-*.jar") if path.stem[-1].isdigit()]
    return max(jars, key=lambda path: path.stat().st_mtime, default=None)


def _build(pom: Path) -> None:
    java = prepare_java()
    repository = cache_folder().absolute() / "maven"
    command = [
        str(java.maven),
        "--quiet",
        "--batch-mode",
        f"--file={pom}",
        f"-Dmaven.repo.local={repository}",
        "-DskipTests",
        "package",
    ]
    environment = java.maven_environment()
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        errors = re.findall(r"^\[ERROR\] *(.+?)\.?$", done.stdout, flags=re.MULTILINE)
        message = (
            f"Maven must be able to build {pom}; mvn says: {' '.join(errors[:2])[:500]}. Try it there: mvn package."
        )
        raise RequestError(message)


def show_jar() -> None:
    """Print where the jar for Hadoop's daemons is, to copy it; in a checkout it is built first."""
    click.echo(find_jar())
