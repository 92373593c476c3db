"""The processes of one job on this machine, and what they have used: read from /proc, never their command lines.

Invariants:

1. A process belongs to the job by its cgroup or by a variable that the manager set, and has the job's user.
2. What was used only grows, whichever processes have ended since.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_READ = re.compile(r"^read_bytes: (\d+)", re.MULTILINE)
_SERVER = "nvidia-cuda-mps"
_CPU_FILES = (("cpu.stat", re.compile(r"usage_usec (\d+)"), 1e-6), ("cpuacct.usage", re.compile(r"(\d+)"), 1e-9))
_HOLD_LOOKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIdentity:
    """How a job's processes are known.

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
        identity: Of the job.
        proc: Where the kernel tells of processes.
        cgroups: Where it tells of groups of them.
    """

    def __init__(self, identity: JobIdentity, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._identity = identity
        self._proc = proc
        self._cgroups = cgroups
        self._looks: dict[int, int] = {}
        self._own: dict[int, tuple[float, int]] = {}
        self._parents: dict[int, int] = {}
        self._settled = (0.0, 0)
        self._group: Path | None = None
        self._seen = False

    def look(self) -> frozenset[int]:
        """Return the processes that the job has now; one that is no longer there is settled."""
        running = {int(name) for name in os.listdir(self._proc) if name.isdigit()}  # noqa: PTH208 - each look: faster
        for pid in [pid for pid in self._own if pid not in running]:
            self._settle(pid)
        self._looks = {pid: self._looks.get(pid, 0) for pid in running}
        for pid in running:
            # A process that has just been forked still has the environment of what started it: look twice.
            if pid not in self._own and self._looks[pid] < _HOLD_LOOKS:
                self._looks[pid] += 1
                if self._is_own(pid):
                    self._own[pid] = (0.0, 0)
        for pid in self._own:
            self._measure(pid)
        self._seen = self._seen or bool(self._own)
        return frozenset(self._own)

    def consumption(self) -> Consumption:
        """Return what the job has used up to the last look; its cgroup's own count where there is one."""
        if not self._seen:
            return Consumption()
        cpu_s = self._settled[0] + sum(cpu_s for cpu_s, _ in self._own.values())
        read_bytes = self._settled[1] + sum(read_bytes for _, read_bytes in self._own.values())
        counted_s = self._counted_s()
        return Consumption(cpu_s=max(cpu_s, counted_s or 0.0), read_bytes=read_bytes)

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
        """Tell whether *pid* is a server or daemon of MPS, which works for others."""
        with suppress(OSError):
            return (self._proc / str(pid) / "comm").read_text().startswith(_SERVER[:15])
        return False

    def _is_own(self, pid: int) -> bool:
        folder = self._proc / str(pid)
        try:
            if folder.stat().st_uid != self._identity.uid:
                return False
            group = self._group_of(folder)
            if group is not None:
                self._group = group
                return True
            variables = (folder / "environ").read_bytes().split(b"\0") if self._identity.variable else []
        except OSError:  # it has ended, or is none of ours to look at
            return False
        return self._identity.variable.encode() in variables

    def _group_of(self, folder: Path) -> Path | None:
        """Return the job's cgroup, by its path below the mount, where the process in *folder* is in it."""
        for line in (folder / "cgroup").read_text().splitlines() if self._identity.cgroup else ():
            _, controllers, path = line.split(":", 2)
            head, found, _ = f"{path}/".partition(f"/{self._identity.cgroup}/")
            if found and controllers in ("", "cpuacct", "cpu,cpuacct"):
                return Path(controllers) / head.lstrip("/") / self._identity.cgroup
        return None

    def _counted_s(self) -> float | None:
        """Return the processor time that the kernel counted for the job's cgroup."""
        for name, form, unit_s in _CPU_FILES if self._group else ():
            with suppress(OSError):
                match = form.search((self._cgroups / self._group / name).read_text())  # type: ignore[operator]
                if match:
                    return int(match[1]) * unit_s
        return None

    def _measure(self, pid: int) -> None:
        """Read what *pid* has used, with its children that have ended."""
        cpu_s, read_bytes = self._own[pid]
        for field in self._stat(pid):
            cpu_s = max(cpu_s, field)
        with suppress(OSError):
            match = _READ.search((self._proc / str(pid) / "io").read_text())
            read_bytes = max(read_bytes, int(match[1])) if match else read_bytes
        self._own[pid] = (cpu_s, read_bytes)

    def _stat(self, pid: int) -> Iterator[float]:
        """Yield the processor time of *pid*, and remember its parent; nothing where it has just ended."""
        with suppress(OSError, IndexError, ValueError):
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            self._parents[pid] = int(fields[1])
            yield sum(map(int, fields[11:15])) / _TICKS_PER_S

    def _settle(self, pid: int) -> None:
        """Keep what *pid* used: its parent counts it from now on, unless that is not the job's."""
        cpu_s, read_bytes = self._own.pop(pid)
        if self._parents.pop(pid, 0) not in self._own:
            self._settled = (self._settled[0] + cpu_s, self._settled[1] + read_bytes)
