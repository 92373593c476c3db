"""The processes of one sandbox, found and ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

_POLL_S = 0.02
_KILLED_WITHIN_S = 30.0
"""The kernel ends a killed process once that gets a processor, which takes a while on a loaded machine."""


def read_pid(path: Path) -> int | None:
    """Return the id that the file holds, ``None`` where there is none or its process is gone."""
    try:
        pid = int(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return None
    return pid if is_alive(pid) else None


def is_alive(pid: int) -> bool:
    """Return whether *pid* runs; a zombie does not."""
    return _stat(pid).get("state", "Z") not in "ZX"


def resume(pids: Iterable[int]) -> None:
    """Let those that were stopped go on."""
    for pid in pids:
        _send(pid, signal.SIGCONT)


def end(pids: Iterable[int], *, grace_s: float = 5.0) -> None:
    """End each process: a stopped one goes on first, one that outlives *grace_s* is killed, and gone soon."""
    remaining = list(pids)
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILLED_WITHIN_S)):
        for pid in remaining:
            _send(pid, number)
        # A stopped process gets no SIGTERM before it goes on.
        resume(remaining)
        remaining = wait_for_end(remaining, wait_s)
        if not remaining:
            return


def kill(pids: Iterable[int], *, timeout_s: float = _KILLED_WITHIN_S) -> None:
    """End each process as a power cut would, and wait until it is gone."""
    killed = list(pids)
    for pid in killed:
        _send(pid, signal.SIGKILL)
    wait_for_end(killed, timeout_s)


def wait_for_end(pids: Iterable[int], timeout_s: float) -> list[int]:
    """Wait until the processes are gone and return those that are not."""
    deadline = time.monotonic() + timeout_s
    remaining = [pid for pid in pids if is_alive(pid)]
    while remaining and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        remaining = [pid for pid in remaining if is_alive(pid)]
    return remaining


def find(mark: str, folder: Path, programs: Path) -> list[int]:
    """Return a sandbox's processes, and all their descendants.

    They carry *mark*, a variable and its value, in their environment, or stand in *folder* and are of *programs*.

    This process and its ancestors are left out: ``down`` may be typed inside the sandbox's own shell or job.
    """
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    parents = {pid: int(_stat(pid).get("parent", "0")) for pid in pids}
    marked = {pid for pid in pids if mark.encode() in _environment(pid) or _is_sandbox_process(pid, folder, programs)}
    spared = _line(os.getpid(), parents)
    belongs = (pid for pid in pids if pid not in spared and (marked & _line(pid, parents)))
    return sorted(pid for pid in belongs if is_alive(pid))


def _is_sandbox_process(pid: int, folder: Path, programs: Path) -> bool:
    """Return whether *pid* is a program below *programs*, working in *folder*.

    Some are known only by this, because they write a title over the environment that they began with.
    """
    process = Path("/proc") / str(pid)
    try:
        return (process / "exe").readlink().is_relative_to(programs) and (process / "cwd").readlink().is_relative_to(
            folder
        )
    except OSError:
        return False


def _line(pid: int, parents: Mapping[int, int]) -> set[int]:
    """Return *pid* and its ancestors."""
    line: set[int] = set()
    while pid > 0 and pid not in line:
        line.add(pid)
        pid = parents.get(pid, 0)
    return line


def _environment(pid: int) -> set[bytes]:
    """Return the environment a process began with, empty where it is another user's or gone."""
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _stat(pid: int) -> dict[str, str]:
    """Return state and parent of a process; the name before them is in brackets and may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    state, parent = text.rpartition(")")[2].split()[:2]
    return {"state": state, "parent": parent}


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
