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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes import processes
from gpusage_sandboxes.guard import dismiss, start_guard
from gpusage_sandboxes.inside import Inside
from gpusage_sandboxes.layout import Layout
from gpusage_sandboxes.progress import Report

if TYPE_CHECKING:
    from typing_extensions import Self  # mypy brings it; at run time nothing needs it

START_LIMIT_S = 120.0
"""For what takes seconds on a machine that is not loaded."""
_POLL_S = 0.05
_LEFTOVER_GRACE_S = 2.0
_MOST_SWEEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox(ABC):
    """One private cluster; a context manager that takes it down.

    Attributes:
        manager: The workload manager's name, as in ``gpusage NAME sandbox``.
        complaint_characters: How much of the end of a command's complaint is shown; all of it where ``None``.
    """

    manager: ClassVar[str]
    complaint_characters: ClassVar[int | None] = None
    layout: Layout
    guards: list[subprocess.Popen[bytes]] = field(default_factory=list, repr=False, compare=False)

    def __enter__(self) -> Self:
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
        inside = Inside(
            environment={**self.environment, **(environment or {})},
            folder=self.layout.jobs,
            logs=self.logs,
            complaint_characters=self.complaint_characters,
        )
        return inside.run(command, check=check, timeout_s=timeout_s)

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
    """Take *sandbox* down where its start fails, unless GPUSAGE_KEEP_SANDBOX says that somebody will look into it."""
    try:
        report("start", 0, 1)
        yield
        report("start", 1, 1)
    except BaseException:
        if not os.environ.get("GPUSAGE_KEEP_SANDBOX"):
            sandbox.down()
        raise
