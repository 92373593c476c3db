"""A running sandbox: entered, used, and taken down without a trace. A workload manager adds how its daemons start.

Invariants:

1. Everything lies in one folder that was empty or not there before, and is gone afterwards.
2. Every process of a sandbox can be distinguished from all others on the host; that is how leftovers are found.
3. The sandbox goes down with the process that entered it, also where that process is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes import processes
from gpusage_sandboxes.host import Report
from gpusage_sandboxes.layout import Layout

if TYPE_CHECKING:
    from typing_extensions import Self  # mypy brings it; at run time nothing needs it


_WAIT_FOR_OWNER = 'read -r _; record=$1; shift; [ ! -e "$record" ] || exec "$@"'


def start_guard(record: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that runs *command* once this one is gone, whatever ended it, if *record* is still there."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _WAIT_FOR_OWNER, "guard", str(record), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def dismiss(guard: subprocess.Popen[bytes]) -> None:
    """Let the guard go, once the sandbox is down."""
    if guard.stdin is not None:
        guard.stdin.close()
    guard.wait()


def enter(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Put *command*, or the user's own shell where there is none, in this process's place.

    Raises:
        click.ClickException: It is no program.
    """
    arguments = list(command) or [os.environ.get("SHELL") or "/bin/sh"]
    try:
        os.execvpe(arguments[0], arguments, environment)  # noqa: S606 - the user's own command, in the user's place
    except OSError as error:
        message = f"Command {arguments[0]!r} must be a program; got: {error.strerror}."
        raise click.ClickException(message) from error


START_LIMIT_S = 300.0
"""For what takes seconds on a machine that is not loaded."""
MOST_CHARACTERS = 500
"""Of a command's complaint, in an error."""
_POLL_S = 0.05
_LEFTOVER_GRACE_S = 2.0
_MOST_SWEEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox(ABC):
    """One private cluster; a context manager that takes it down.

    Attributes:
        manager: The workload manager's name, as in ``gpusage NAME sandbox``.
    """

    manager: ClassVar[str]
    layout: Layout
    guards: list[subprocess.Popen[bytes]] = field(default_factory=list, repr=False, compare=False)

    def __enter__(self) -> Self:
        # Its own process: this one may be killed, and nothing may be left of the sandbox then.
        folder = str(self.layout.folder)
        command = (sys.executable, "-m", "gpusage.cli", self.manager, "sandbox", "down", "--folder", folder)
        self.guards.append(start_guard(self.layout.record, command))
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """What a process needs to be inside: the manager's commands, their configuration, and ours."""

    @property
    def logs(self) -> Path:
        """Where the daemons write."""
        return self.layout.logs

    @abstractmethod
    def nodes(self) -> list[str]:
        """Return the nodes' names."""

    @abstractmethod
    def start(self) -> None:
        """Start every daemon, and wait until all nodes can take jobs.

        Raises:
            RequestError: One of them does not come up.
        """

    @abstractmethod
    def processes(self) -> list[int]:
        """Return the ids of all that runs in the sandbox, this process and those above it left out."""

    @abstractmethod
    def end_daemons(self) -> None:
        """End jobs and daemons, one after another; `down` ends what is left."""

    @abstractmethod
    def last_words(self, daemons: Iterable[str]) -> str:
        """Return why one of *daemons* is gone for good, empty where none is known to be."""

    def run(
        self,
        *command: str,
        check: bool = True,
        timeout_s: float = START_LIMIT_S,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run *command* inside and return its result.

        Raises:
            RequestError: It failed, and *check* is true; or it took longer than *timeout_s*.
        """
        words = " ".join(command)
        try:
            done = subprocess.run(
                command,
                check=False,
                capture_output=True,
                text=True,
                errors="replace",  # a job's name may be any bytes, and `down` must not stop at it
                cwd=self.layout.jobs,
                env={**self.environment, **(environment or {})},
                timeout=timeout_s,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            message = f"Command {words!r} must end within {timeout_s:g} s; it did not. Look into {self.logs}."
            raise RequestError(message) from error

        if check and done.returncode != 0:
            # What Java complains of ends with what matters.
            complaint = " ".join((done.stderr or done.stdout).split())[-MOST_CHARACTERS:]
            outcome = complaint or f"exit status {done.returncode}"
            message = f"Command {words!r} must succeed; got: {outcome}. Look into {self.logs}."
            raise RequestError(message)

        return done

    def pid(self, daemon: str) -> int | None:
        """Return the process id of a daemon, ``None`` where it does not run."""
        return processes.read_pid(self.layout.pid_file(daemon))

    def wait_for(
        self,
        condition: Callable[[], object],
        what: str,
        timeout_s: float = START_LIMIT_S,
        daemons: Iterable[str] = (),
    ) -> None:
        """Wait until *condition* holds.

        Args:
            condition: Asked again and again.
            what: The condition in words, for the error.
            timeout_s: How long.
            daemons: Without these there is nothing to wait for.

        Raises:
            RequestError: It does not hold in time, or a daemon is gone.
        """
        needed = list(daemons)
        deadline_s = time.monotonic() + timeout_s

        while not condition():
            trouble = self.last_words(needed)
            if trouble or time.monotonic() > deadline_s:
                message = (
                    f"The sandbox must reach within {timeout_s:g} s that {what}; got: {trouble or 'it did not'}. "
                    f"Look into {self.logs}."
                )
                raise RequestError(message)
            time.sleep(_POLL_S)

    def down(self) -> None:
        """End every job and daemon, and remove the folder."""
        self.end_daemons()
        for _ in range(_MOST_SWEEPS):  # a process that is ended may just have begun another
            processes.end(self.processes(), grace_s=_LEFTOVER_GRACE_S)
        shutil.rmtree(self.layout.folder, ignore_errors=True)
        while self.guards:
            dismiss(self.guards.pop())


@contextmanager
def down_on_failure(sandbox: Sandbox, report: Report) -> Iterator[None]:
    """Take *sandbox* down where its start fails."""
    try:
        report("start", 0, 1)
        yield
        report("start", 1, 1)
    except BaseException:
        sandbox.down()
        raise
