"""The processes of a job on this machine, and their consumption: read from /proc, never their command lines.

Invariants:

1. A process belongs to the job by its cgroup or by the manager's variable, and has the job's user.
2. Consumption only grows, whichever processes have ended since.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_READ = re.compile(r"^read_bytes: (\d+)", re.MULTILINE)
_SERVER = "nvidia-cuda-mps"
_CPU_FILES = (("cpu.stat", re.compile(r"usage_usec (\d+)"), 1e-6), ("cpuacct.usage", re.compile(r"(\d+)"), 1e-9))
_SETTLES_S = 1.0
"""A process is examined until it is known for so long: a fork has the environment of what started it until its exec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSelector:
    """Marks of a job's processes.

    Attributes:
        variable: Entry of their environment, ``JOB_ID=12``; may be empty.
        cgroups: Names that the job's folder in their cgroup's path may have: ``job_12``.
        uid: Their user.
    """

    variable: str
    cgroups: tuple[str, ...]
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """Consumption of a job's processes since its start. ``None`` means unknown."""

    cpu_s: float | None = None
    read_bytes: int | None = None


class JobProcesses:
    """Finds the processes of a job, and adds up their consumption.

    Args:
        selector: Marks of the job's processes.
        proc: The kernel's folder of processes.
        cgroups: The kernel's folder of control groups.
    """

    def __init__(self, selector: ProcessSelector, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._selector = selector
        self._proc = proc
        self._cgroups = cgroups
        self._settled_s: dict[int, float] = {}
        self._own: dict[int, tuple[float, int]] = {}
        self._parents: dict[int, int] = {}
        self._used_by_ended = (0.0, 0)
        self._group: Path | None = None
        self._was_running = False

    def refresh(self) -> frozenset[int]:
        """Find the job's present processes, read their consumption, and return them."""
        running = {int(name) for name in os.listdir(self._proc) if name.isdigit()}  # noqa: PTH208 - every second: faster

        # Consumption of an ended process stays: its parent counts it from now on, if that is the job's and runs.
        for pid in [pid for pid in self._own if pid not in running]:
            cpu_s, read_bytes = self._own.pop(pid)
            if self._parents.pop(pid, 0) not in self._own.keys() & running:
                self._used_by_ended = (self._used_by_ended[0] + cpu_s, self._used_by_ended[1] + read_bytes)

        now_s = time.monotonic()
        self._settled_s = {pid: self._settled_s.get(pid, now_s + _SETTLES_S) for pid in running}
        for pid, settled_s in self._settled_s.items():
            if pid not in self._own and settled_s < inf:
                if self.owns(pid):
                    self._own[pid] = (0.0, 0)
                elif settled_s <= now_s:
                    self._settled_s[pid] = inf

        for pid in self._own:
            self._measure(pid)
        self._was_running = self._was_running or bool(self._own)
        return frozenset(self._own)

    def consumption(self) -> Consumption:
        """Return the job's consumption at the last refresh."""
        if not self._was_running:
            return Consumption()
        cpu_s = self._used_by_ended[0] + sum(cpu_s for cpu_s, _ in self._own.values())
        read_bytes = self._used_by_ended[1] + sum(read_bytes for _, read_bytes in self._own.values())

        # The kernel's own count of a cgroup includes processes that ended between two scans.
        for name, form, unit_s in _CPU_FILES if self._group else ():
            with suppress(OSError):
                match = form.search((self._cgroups / self._group / name).read_text())  # type: ignore[operator]
                if match:
                    cpu_s = max(cpu_s, int(match[1]) * unit_s)
                    break
        return Consumption(cpu_s=cpu_s, read_bytes=read_bytes)

    def variable(self, name: str) -> str | None:
        """Return the variable *name* of the oldest process of the job that has it."""
        prefix = f"{name}=".encode()
        for pid in sorted(self._own):
            with suppress(OSError):
                for each in (self._proc / str(pid) / "environ").read_bytes().split(b"\0"):
                    if each.startswith(prefix):
                        return each.removeprefix(prefix).decode(errors="replace")
        return None

    def parents(self) -> frozenset[int]:
        """Return the processes that started one of the job's; the manager's own is among them."""
        return frozenset(self._parents.values())

    def owns(self, pid: int) -> bool:
        """Return whether *pid* is a process of the job; unknown processes are not."""
        folder = self._proc / str(pid)
        try:
            if folder.stat().st_uid != self._selector.uid:
                return False
            # The cgroup first: a process may clear its environment, but not leave its job's cgroup.
            group = self._group_of(folder)
            if group is not None:
                self._group = group
                return True
            variables = (folder / "environ").read_bytes().split(b"\0") if self._selector.variable else []
        except OSError:  # it has ended, or may not be read by us
            return False
        return self._selector.variable.encode() in variables

    def is_server(self, pid: int) -> bool:
        """Return whether *pid* is a server or daemon of MPS, which works for other processes."""
        # The kernel cuts a process's name to 15 characters.
        with suppress(OSError):
            return (self._proc / str(pid) / "comm").read_text().startswith(_SERVER[:15])
        return False

    def stat(self, pid: int) -> list[str]:
        """Return what proc_pid_stat(5) says of *pid* behind its name, in which may be blanks and brackets.

        The second is the parent; utime, stime, cutime and cstime begin with the twelfth.

        Raises:
            OSError: There is no such process.
        """
        return (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()

    def _group_of(self, folder: Path) -> Path | None:
        """Return the job's cgroup below the mount, if the process in *folder* is in it."""
        # Version 2 has one line with no controllers; version 1 has processor time under cpuacct.
        for line in (folder / "cgroup").read_text().splitlines() if self._selector.cgroups else ():
            _, controllers, path = line.split(":", 2)
            for name in self._selector.cgroups if controllers in ("", "cpuacct", "cpu,cpuacct") else ():
                head, separator, _ = f"{path}/".partition(f"/{name}/")
                if separator:
                    return Path(controllers) / head.lstrip("/") / name
        return None

    def _measure(self, pid: int) -> None:
        """Read the consumption of *pid* and of its ended children; the last figures stay where it has just ended."""
        cpu_s, read_bytes = self._own[pid]
        with suppress(OSError, IndexError, ValueError):
            fields = self.stat(pid)
            self._parents[pid] = int(fields[1])
            cpu_s = max(cpu_s, sum(map(int, fields[11:15])) / _TICKS_PER_S)
        with suppress(OSError):
            match = _READ.search((self._proc / str(pid) / "io").read_text())
            read_bytes = max(read_bytes, int(match[1])) if match else read_bytes
        self._own[pid] = (cpu_s, read_bytes)
