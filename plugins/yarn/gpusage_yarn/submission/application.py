"""The application that YARN gets for a command: our application master, with all that it needs in its environment.

Invariants:

1. Whatever a user typed travels as base64, for bash reads environment values and commands once more.
2. The master's own classes lie on every node, where Hadoop's do: nothing is shipped but the user's files.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusage_hooks.errors import RequestError
from gpusage_yarn.cluster.queues import MASTER_MIB
from gpusage_yarn.share_plan import TYPE, Plan, encode, encode_texts, json_of

MASTER = "org.gpusage.yarn.GpuShareApplicationMaster"
_JARS = [f"$HADOOP_{part}_HOME/share/hadoop/{part.lower()}" for part in ("COMMON", "HDFS", "YARN")]
DEFAULT_CLASSPATH = ",".join(["$HADOOP_CONF_DIR", *(f"{folder}/{jars}" for folder in _JARS for jars in ("*", "lib/*"))])
"""Hadoop's own, where a site has set none; our jar lies in share/hadoop/yarn/lib."""

# Quiet, quick to start, and small, in address space too, which a NodeManager may limit (vmem-check-enabled); the last
# two let one command line serve Java 8 and 17.
_JAVA = (
    "MALLOC_ARENA_MAX=1 {{JAVA_HOME}}/bin/java -Xmx256m -XX:CompressedClassSpaceSize=64m "
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData "
    "-XX:+IgnoreUnrecognizedVMOptions --add-opens=java.base/java.lang=ALL-UNNAMED"
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTE = "'"
_OURS = re.compile(r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_MPS_.*")  # as in Task.java
_MAX_CHARACTERS = 64 * 1024  # of one of our variables, before base64: FlatJson.java stops here
_MAX_ARGUMENT_BYTES = 128 * 1024  # Linux's, for one word of a command line
_ARGUMENT_FRAME = 8 * 1024  # for what Task.java writes around the script, two paths of logs among it


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A command, and how it is to be run.

    Attributes:
        command: As bash is to read it.
        variables: The user's own, for the command.
        files: Names in the container's folder, each with ``URL bytes milliseconds``.
        queue: ``""`` leaves it to the site's rules.
        master_label: Where the master goes, ``""`` for nodes without a label.
        tags: By which the ResourceManager's lists know it.
        classpath: The master's, entries separated by commas as Hadoop has it.
        attempts: How often YARN starts a master at most.
        priority: In the queue; ``None`` leaves it to the queue.
    """

    command: str
    plan: Plan
    name: str
    queue: str = ""
    master_label: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    classpath: str = DEFAULT_CLASSPATH
    tags: tuple[str, ...] = ()
    attempts: int = 2
    priority: int | None = None

    def document(self, identity: str) -> dict[str, Any]:
        """Return the document that submits it under the id *identity*."""
        document: dict[str, Any] = {
            "application-id": identity,
            "application-name": self.name,
            "application-type": TYPE,
            "application-tags": {"tag": list(self.tags)},
            "max-app-attempts": self.attempts,
            "keep-containers-across-application-attempts": True,
            "resource": {"memory": MASTER_MIB, "vCores": 1},
            "am-container-spec": {
                "commands": {"command": self.master_command()},
                "environment": {"entry": [{"key": key, "value": value} for key, value in self.environment().items()]},
            },
        }

        if self.priority is not None:
            document["priority"] = self.priority
        if self.queue:
            document["queue"] = self.queue
        if self.plan.labels and self.master_label:  # else the plan alone says where the containers go
            document["app-node-label-expression"] = self.plan.labels[0]
            document["am-container-node-label-expression"] = self.master_label
        return document

    def environment(self) -> dict[str, str]:
        """Return the master's variables: nothing in them that bash would change."""
        variables = {"GPUSAGE_PLAN": self.plan.encoded(), "GPUSAGE_COMMAND": encode(self.command)}
        if self.variables:
            variables["GPUSAGE_ENV"] = encode_texts(dict(self.variables))
        if self.files:
            variables["GPUSAGE_FILES"] = encode_texts(dict(self.files))
        return variables

    def master_command(self) -> str:
        """Return the master's command line: the outer bash fills in its variables, the inner bash needs the quotes."""
        entries = re.sub(r"\$(\w+)", r"{{\1}}", self.classpath).replace(",", ":")
        return f"{_JAVA} -cp '{entries}' {MASTER} 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr"


def command_line(words: Sequence[str]) -> str:
    """Return the command line for bash: a single word as it was typed, several as the words that they are.

    Raises:
        RequestError: It is too long, or not text.
    """
    line = words[0] if len(words) == 1 else shlex.join(words)
    return _checked("Command", line)


def parse_variables(entries: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return names and values of ``NAME=VALUE`` each; ``NAME`` alone hands on the value that it has here.

    Raises:
        RequestError: A name is none, or all of them together are too much.
    """
    variables: dict[str, str] = {}
    for entry in entries:
        name, separator, value = entry.partition("=")
        if not _VARIABLE.fullmatch(name) or (not separator and name not in os.environ):
            rule = "be NAME=VALUE, or the NAME of one that is set here"
            message = f"Variable must {rule}; got {entry[:80]!r}. Write --env LEVEL=3."
            raise RequestError(message)
        variables[name] = value if separator else os.environ[name]

    for name, value in variables.items():
        _checked(f"Variable {name}", value)
    _checked("Variables, as they travel,", json_of(variables))
    return tuple(variables.items())


def without_reserved(variables: Iterable[tuple[str, str]]) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return *variables* without any that would lift a container's limits, and the names of these."""
    entries = tuple(variables)
    ours = tuple(name for name, _ in entries if _OURS.fullmatch(name))
    return tuple((name, value) for name, value in entries if name not in ours), ours


def require_transportable(command: str, variables: Iterable[tuple[str, str]]) -> None:
    """Refuse a command that with its variables does not fit where a node hands it to bash, as a word in base64.

    Raises:
        RequestError: It is so long.
    """
    exports = [f"export {name}='{value}'\n{value.count(_QUOTE) * '...'}" for name, value in variables]
    script = len("".join([*exports, command, "\n"]).encode())

    # Base64 makes four bytes of three.
    most = (_MAX_ARGUMENT_BYTES - _ARGUMENT_FRAME) * 3 // 4
    if script > most:
        message = (
            f"Command and variables must have at most {most} bytes together, a quote in a variable counted as four; "
            f"got {script}. Put them into a script, and send that with --file."
        )
        raise RequestError(message)


def describe_files(paths: Iterable[Path]) -> tuple[tuple[str, str], ...]:
    """Return how each file is to be fetched by the nodes, which must see it at the same path.

    Raises:
        RequestError: One is missing, or two have the same name.
    """
    files: dict[str, str] = {}
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            message = f"File {str(path)!r} must exist; got: {error.strerror}. Check --file."
            raise RequestError(message) from error
        if not path.is_file() or path.name in files:
            rule = "be a file" if not path.is_file() else "have a name of its own, for all lie in one folder"
            message = f"File {str(path)!r} must {rule}; it does not. Check --file."
            raise RequestError(message)

        # YARN compares the time of change to the millisecond.
        files[path.name] = f"{path.absolute().as_uri()} {status.st_size} {status.st_mtime_ns // 1_000_000}"
    _checked("List of files, as it travels,", json_of(files))
    return tuple(files.items())


def _checked(what: str, text: str) -> str:
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        message = f"{what} must be UTF-8; got other bytes. Put it into a script, and send that with --file."
        raise RequestError(message) from None

    if length > _MAX_CHARACTERS or "\0" in text:
        rule = f"have at most {_MAX_CHARACTERS} bytes, none of them 0"
        message = f"{what} must {rule}; got {length}. Put it into a script, and send that with --file."
        raise RequestError(message)
    return text
