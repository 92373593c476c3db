"""Our classes: whether this host's Hadoop would load them.

A class that is configured and cannot be loaded keeps a daemon from starting.

Hadoop's own FindClass instantiates each class, in a JVM of its own, with the classpath that `yarn classpath` prints.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpusage.boundary.edits import Edit
from gpusage_hooks.errors import RequestError
from gpusage_yarn.cluster.configuration import FILES, PACKAGE, read_settings
from gpusage_yarn.jar import jar_instructions

# A JVM starts in a second, and in many on a busy host.
_LIMIT_S = 60.0
_CLASS = re.compile(rf"{re.escape(PACKAGE)}\.\w+")
_FINDER = "org.apache.hadoop.util.FindClass"
_OPTIONS = ("-Xmx128m", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_TROUBLE = re.compile(r"^(?:Caused by: )?([\w.$]+(?:Exception|Error)[^\n]*)", re.MULTILINE)


def configured_classes(folder: Path) -> tuple[str, ...]:
    """Return our classes that the configuration in *folder* names."""
    values = [value for name in FILES for value in read_settings(folder / name).values()]
    return tuple(dict.fromkeys(class_name for value in values for class_name in _CLASS.findall(value)))


def require_classes(edits: Iterable[Edit], folder: Path) -> None:
    """Refuse edits that name a class of ours which this host's Hadoop cannot load; without Hadoop here, ask nothing.

    Raises:
        RequestError: There is such a class.
    """
    new = {name for edit in edits for name in _CLASS.findall(edit.after or "")}
    try:
        loaded = load_classes(sorted(new), folder)
    # This host may be an admin's desk without Hadoop.
    except RequestError:
        return

    broken = [f"{name}: {trouble}" for name, trouble in loaded.items() if trouble]
    if broken:
        message = (
            f"Our classes must load with this host's Hadoop, or its daemons would not start; got: {broken[0]}. "
            f"{jar_instructions()}"
        )
        raise RequestError(message)


def load_classes(names: Iterable[str], folder: Path) -> Mapping[str, str]:
    """Return for each class why it cannot be made here, ``""`` where it can.

    Raises:
        RequestError: This host has no Java, or no Hadoop whose `yarn classpath` works.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java or not Path(java).is_file():
        message = "Java must be found by JAVA_HOME or PATH to try our classes; it is not. Set JAVA_HOME."
        raise RequestError(message)

    classpath, troubles_by_class = _classpath(folder), {}
    for name in names:
        command = [java, *_OPTIONS, "-classpath", classpath, _FINDER, "create", name]
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=_LIMIT_S, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            troubles_by_class[name] = str(error)
            continue

        # Of a chain of exceptions the last is the cause.
        troubles = _TROUBLE.findall(done.stdout + done.stderr)
        trouble = troubles[-1] if troubles else f"exit status {done.returncode}"
        troubles_by_class[name] = " ".join(trouble.split())[:200] if done.returncode else ""
    return troubles_by_class


def _classpath(folder: Path) -> str:
    """Return the output of `yarn classpath` for the configuration in *folder*."""
    homes = [os.environ.get(name) for name in ("HADOOP_YARN_HOME", "HADOOP_HOME")]
    places = os.pathsep.join([*(f"{home}/bin" for home in homes if home), os.environ.get("PATH", "")])
    program = shutil.which("yarn", path=places)
    if program is None:
        message = "Hadoop's command yarn must be found by HADOOP_HOME or PATH to try our classes; it is not. Set one."
        raise RequestError(message)

    environment = {**os.environ, "HADOOP_CONF_DIR": str(folder), "YARN_CONF_DIR": str(folder)}
    try:
        done = subprocess.run(
            [program, "classpath"], check=True, capture_output=True, text=True, timeout=_LIMIT_S, env=environment
        )
    except (OSError, subprocess.SubprocessError) as error:
        message = f"Command {program} classpath must succeed; got: {error}. Try it by hand."
        raise RequestError(message) from error
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""  # warnings come first
