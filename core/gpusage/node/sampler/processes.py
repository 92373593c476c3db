"""The processes of one job on this machine, and what they have used: read from /proc, never their command lines.

Invariants:

1. A process belongs to the job by its cgroup or by a variable that the manager set, and has the job's user.
2. What was used only grows, whichever processes have ended since.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_READ = re.compile(r"^read_bytes: (\d+)", re.MULTILINE)
_SERVER = "nvidia-cuda-mps"
_CPU_FILES = (("cpu.stat", re.compile(r"usage_usec (\d+)"), 1e-6), ("cpuacct.usage", re.compile(r"(\d+)"), 1e-9))
_SCANS_PER_PROCESS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSelector:
    """How the processes of a job are recognised.

    Attributes:
        variable: In their environment, ``JOB_ID=12``; empty where there is none.
        cgroup: The name of one folder of their cgroup's path, ``job_12``; empty where there is none.
        uid: Whose they are.
    """

    variable: str
    cgroup: str
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """What a job's processes have used since it began. ``None`` means unknown."""

    cpu_s: float | None = None
    read_bytes: int | None = None


class JobProcesses:
    """Finds the processes of one job, and adds up what they use.

    Args:
        selector: Of the job.
        proc: Where the kernel lists processes.
        cgroups: Where it lists groups of them.
    """

    def __init__(self, selector: ProcessSelector, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._selector = selector
        self._proc = proc
        self._cgroups = cgroups
        self._scans: dict[int, int] = {}
        self._own: dict[int, tuple[float, int]] = {}
        self._parents: dict[int, int] = {}
        self._used_by_ended = (0.0, 0)
        self._group: Path | None = None
        self._was_running = False

    def refresh(self) -> frozenset[int]:
        """Find the processes that the job has now, read what they use, and return them."""
        running = {int(name) for name in os.listdir(self._proc) if name.isdigit()}  # noqa: PTH208 - every second: faster
        for pid in [pid for pid in self._own if pid not in running]:
            # Its parent counts what it used from now on, unless that is not the job's.
            cpu_s, read_bytes = self._own.pop(pid)
            if self._parents.pop(pid, 0) not in self._own:
                self._used_by_ended = (self._used_by_ended[0] + cpu_s, self._used_by_ended[1] + read_bytes)

        self._scans = {pid: self._scans.get(pid, 0) for pid in running}
        for pid in running:
            # A new fork still has the environment of what started it, so each process is examined twice.
            if pid not in self._own and self._scans[pid] < _SCANS_PER_PROCESS:
                self._scans[pid] += 1
                if self._is_own(pid):
                    self._own[pid] = (0.0, 0)

        for pid in self._own:
            self._measure(pid)
        self._was_running = self._was_running or bool(self._own)
        return frozenset(self._own)

    def consumption(self) -> Consumption:
        """Return what the job had used when it was last refreshed; its cgroup's own count where there is one."""
        if not self._was_running:
            return Consumption()
        cpu_s = self._used_by_ended[0] + sum(cpu_s for cpu_s, _ in self._own.values())
        read_bytes = self._used_by_ended[1] + sum(read_bytes for _, read_bytes in self._own.values())

        # The kernel counts the cgroup's processor time, that of processes which were never seen included.
        for name, form, unit_s in _CPU_FILES if self._group else ():
            with suppress(OSError):
                match = form.search((self._cgroups / self._group / name).read_text())  # type: ignore[operator]
                if match:
                    cpu_s = max(cpu_s, int(match[1]) * unit_s)
                    break
        return Consumption(cpu_s=cpu_s, read_bytes=read_bytes)

    def variable(self, name: str) -> str | None:
        """Return what the environment of a process of the job, the oldest that has it, says of *name*."""
        prefix = f"{name}=".encode()
        for pid in sorted(self._own):
            with suppress(OSError):
                for each in (self._proc / str(pid) / "environ").read_bytes().split(b"\0"):
                    if each.startswith(prefix):
                        return each.removeprefix(prefix).decode(errors="replace")
        return None

    def is_server(self, pid: int) -> bool:
        """Return whether *pid* is a server or daemon of MPS, which works for others."""
        with suppress(OSError):
            # The kernel cuts a name off after 15 characters.
            return (self._proc / str(pid) / "comm").read_text().startswith(_SERVER[:15])
        return False

    def _is_own(self, pid: int) -> bool:
        folder = self._proc / str(pid)
        try:
            if folder.stat().st_uid != self._selector.uid:
                return False
            group = self._group_of(folder)
            if group is not None:
                self._group = group
                return True
            variables = (folder / "environ").read_bytes().split(b"\0") if self._selector.variable else []
        except OSError:  # it has ended, or may not be read by us
            return False
        return self._selector.variable.encode() in variables

    def _group_of(self, folder: Path) -> Path | None:
        """Return the job's cgroup, by its path below the mount, where the process in *folder* is in it."""
        for line in (folder / "cgroup").read_text().splitlines() if self._selector.cgroup else ():
            _, controllers, path = line.split(":", 2)
            head, separator, _ = f"{path}/".partition(f"/{self._selector.cgroup}/")
            if separator and controllers in ("", "cpuacct", "cpu,cpuacct"):
                return Path(controllers) / head.lstrip("/") / self._selector.cgroup
        return None

    def _measure(self, pid: int) -> None:
        """Read what *pid* has used, with its children that have ended."""
        cpu_s, read_bytes = self._own[pid]
        with suppress(OSError, IndexError, ValueError):
            # The name in parentheses may have spaces. Then come the state, the parent, and from utime to cstime.
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            self._parents[pid] = int(fields[1])
            cpu_s = max(cpu_s, sum(map(int, fields[11:15])) / _TICKS_PER_S)
        with suppress(OSError):
            match = _READ.search((self._proc / str(pid) / "io").read_text())
            read_bytes = max(read_bytes, int(match[1])) if match else read_bytes
        self._own[pid] = (cpu_s, read_bytes)
