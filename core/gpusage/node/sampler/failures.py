"""Failed GPU processes of a job, and where their last words are, in a file that the job's user reads.

Whether a job lacked GPU memory is decided where it ends, with its user's rights. What only root sees is recorded here,
one line each, in the order of the events; fields are separated by blanks:

    gpu PID                                    a process of the job opened the GPU, or was on it by its counters
    failed PID STATUS SECONDS                  it ended with this wait(2) status, by a clock that never goes back
    well PID                                   it ended with status 0, after the failures above
    near PID                                   its use was near the limit when it failed
    full PID                                   so it was, and nobody wrote a text
    output PID BEGIN END LATER own|appended PATH
                                               text of its last seconds in a file: bytes BEGIN to END, and to LATER with
                                               what followed within a moment; others, too, may append to the file
    read PID                                   PID has read this file: all that was seen before it is in here

Invariants:

1. No output is read here. Only its size is measured, through a descriptor that can read nothing.
2. A file that another process of this user on this node has open, and that is appended to, is never named.
"""

from __future__ import annotations

import os
import select
import stat
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpusage.node.sampler.kernel_events import ExitEvent, ExitWatch, OpenWatch
from gpusage.node.sampler.processes import PROC, JobProcesses, ProcessSelector
from gpusage_hooks.types import Allocation

DEVICES = ("nvidia[0-9]*", "nvidia-uvm")
"""Files that a program opens for CUDA; nvidia-smi opens the first kind too."""
LAST_WORDS_S = 30.0
"""A process that failed for want of memory ends within this time after it said so. One that coped with it goes on."""
LATER_S = 0.3
"""In which `tee` or srun has written what a process gave it last."""
NEAR_SHARE = 0.95
NEAR_S = 12.0
"""A use near the limit counts if it was seen so lately, one longest pause of the sampler ..."""
GROWN_S = 30.0
"""... and was reached so lately: a program that takes all memory at its start is always near the limit."""
FIRST_PAUSE_S, LONGEST_PAUSE_S, PAUSE_GROWTH = 0.5, 10.0, 1.3
BREATH_S = 0.2
"""Between two readings of the kernel's events: other jobs' programs may fail a thousand times a second."""
LIMIT_FAILURES, LIMIT_OUTPUTS = 64, 32
_NOBODY = 0xFFFFFFFF
"""In an access list (acl(5)): an entry that names no user. Entries are owner, user, group, mask and others."""


@dataclass(slots=True, kw_only=True)
class _Output:
    """A file that the job's processes write.

    Attributes:
        descriptor: Opened with O_PATH: it survives a rename, and its writer.
        appends: Whether somebody else could append to it as well.
        sizes: When it had how many bytes; the oldest is at most somewhat older than `LAST_WORDS_S`.
    """

    descriptor: int
    path: str
    appends: bool
    sizes: list[tuple[float, int]] = field(default_factory=list)

    def measure(self, now_s: float) -> int:
        """Return how many bytes it has, and remember that."""
        size = os.fstat(self.descriptor).st_size
        while len(self.sizes) > 1 and self.sizes[1][0] <= now_s - LAST_WORDS_S:
            del self.sizes[0]
        self.sizes.append((now_s, size))
        return size

    def size_at(self, at_s: float) -> int:
        """Return how many bytes it had at *at_s*, or a little earlier."""
        earlier = [size for measured_s, size in self.sizes if measured_s <= at_s]
        # A file that was found later was opened later; what is appended to may be older.
        return earlier[-1] if earlier else self.sizes[0][1] if self.appends else 0


class FailureRecorder(threading.Thread):
    """Records the failed GPU processes of a job, in a thread, until it is closed.

    Args:
        file: Where; replaced if it exists, and removed in the end. Its user may read it.
        selector: Marks of the job's processes.
        devices: The folder of the GPUs' device files.

    Raises:
        OSError: The kernel tells this process of no ends or openings, or the file cannot be written.
    """

    def __init__(self, file: Path, selector: ProcessSelector, devices: Path) -> None:
        super().__init__(daemon=True)
        self._exits = ExitWatch()
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = file.with_name(f"{file.name}.new")
        fresh.unlink(missing_ok=True)
        self._file = file
        self._log = os.open(fresh, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        # It stays root's: an access list lets the job's user read it, who could write to a file of his own.
        if selector.uid != os.geteuid():
            entries = (1, 6, _NOBODY, 2, 4, selector.uid, 4, 0, _NOBODY, 16, 4, _NOBODY, 32, 0, _NOBODY)
            access = struct.pack("<I" + 5 * "HHI", 2, *entries)
            os.setxattr(self._log, "system.posix_acl_access", access)

        # Without it nobody who reads the file would be answered.
        try:
            self._opens = OpenWatch([each for name in DEVICES for each in devices.glob(name)], [fresh])
        except OSError:
            self._exits.close()
            os.close(self._log)
            fresh.unlink()
            raise
        fresh.replace(file)  # from now on all is seen

        self._uid = selector.uid
        self._processes = JobProcesses(selector)
        self._wake_read, self._wake_write = os.pipe()
        self._closing = False
        self._on_gpu: frozenset[int] = frozenset()
        self._newly_on_gpu: deque[int] = deque()
        self._near: dict[int, tuple[float, float]] = {}
        self._gpu_since: dict[int, float] = {}
        self._starters: set[int] = set()
        self._outputs: dict[tuple[int, int], _Output] = {}
        self._ended: list[tuple[float, ExitEvent, dict[tuple[int, int], int]]] = []
        self._failures = 0

    def note_memory(self, memory_bytes: Mapping[int, int | None], granted: Allocation) -> None:
        """Note what the job's processes on the GPU hold, and what limits it; from the sampler's own thread."""
        now_s = time.monotonic()
        known = {pid: memory for pid, memory in memory_bytes.items() if memory is not None}
        # The driver limits all processes of a job together, MPS each one alone.
        if granted.limited_by == "wall":
            known = dict.fromkeys(known, sum(known.values()))
        limit = NEAR_SHARE * (granted.memory_limit_bytes or float("inf"))
        # A process that has just gone from the counters may be about to end.
        near = {pid: times for pid, times in self._near.items() if pid not in known and now_s - times[1] <= NEAR_S}
        near |= {pid: (self._near.get(pid, (now_s,))[0], now_s) for pid, used in known.items() if used >= limit}
        self._near = near
        if memory_bytes.keys() - self._on_gpu:
            self._newly_on_gpu.extend(memory_bytes.keys() - self._on_gpu)
            os.write(self._wake_write, b".")
        self._on_gpu = frozenset(memory_bytes)

    def close(self) -> None:
        """End the thread, and remove the file."""
        self._closing = True
        os.write(self._wake_write, b".")
        self.join(LONGEST_PAUSE_S)
        for end in (self._wake_read, self._wake_write):
            os.close(end)
        self._file.unlink(missing_ok=True)

    def run(self) -> None:
        """Record until closed."""
        # What the job has open is to be seen before a program that has come to the GPU ends.
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -5)
        urgent = (self._opens.fileno(), self._wake_read)
        pause_s, next_s = FIRST_PAUSE_S, 0.0
        while not self._closing:
            ready = select.select((self._exits.fileno(), *urgent), (), (), LATER_S if self._ended else pause_s)[0]
            if self._wake_read in ready:
                os.read(self._wake_read, 64)
            known = len(self._gpu_since)
            with suppress(OSError):  # a process or its folder that has just gone
                self.record()
                if len(self._gpu_since) > known:
                    pause_s, next_s = FIRST_PAUSE_S, 0.0
                if self._gpu_since and time.monotonic() >= next_s:
                    self._measure(self._processes.refresh())
                    pause_s = min(LONGEST_PAUSE_S, pause_s * PAUSE_GROWTH)
                    next_s = time.monotonic() + pause_s
            # Who reads the file is answered at once; ends of other jobs' processes wait for each other.
            if ready and not self._ended:
                select.select(urgent, (), (), BREATH_S)

        self._exits.close()
        self._opens.close()
        for descriptor in (self._log, *(output.descriptor for output in self._outputs.values())):
            os.close(descriptor)

    def record(self) -> None:
        """Record what has happened since the last time."""
        now_s = time.monotonic()
        gone = [pid for pid in self._gpu_since if not (PROC / str(pid)).exists()]
        opened = self._opens.read()
        ended = list(self._exits.read())

        # Who has opened the GPU and has ended already is the job's if its parent is.
        shown = {self._newly_on_gpu.popleft() for _ in range(len(self._newly_on_gpu))}
        fresh = (opened.users | shown) - self._gpu_since.keys() - {os.getpid()}
        if fresh:
            own = self._processes.refresh() | {pid for pid in fresh if self._processes.owns(pid)}
            parents = self._processes.parents()
            fresh &= own | shown | {each.pid for each in ended if each.parent in own | parents}
            self._starters |= parents
            if fresh:
                self._measure(own)
            self._gpu_since |= {pid: time.monotonic() if pid in own else 0.0 for pid in fresh}

        # Of what happened between two readings, openings and successes come last: then the job coped with the failures.
        failed = [each for each in ended if each.pid in self._gpu_since]
        for each in failed:
            if each.pid in fresh:
                self._write(f"gpu {each.pid}")
            if self._failures < LIMIT_FAILURES:
                self._failures += 1
                self._write(f"failed {each.pid} {each.status} {now_s:.0f}")
                self._ended.append((now_s, each, {key: output.measure(now_s) for key, output in self._outputs.items()}))
        for pid in fresh - {each.pid for each in failed}:
            self._write(f"gpu {pid}")
        for pid in set(gone) - {each.pid for each in failed}:
            self._write(f"well {pid}")
        due = [each for each in self._ended if opened.readers or now_s - each[0] >= LATER_S]
        for at_s, exit_event, ends in due:
            self._describe(at_s, exit_event, ends)
        self._ended = [each for each in self._ended if each not in due]

        # The number of a process that has ended may soon be another's.
        for pid in {*gone, *(each.pid for each in ended)}:
            self._gpu_since.pop(pid, None)
        for pid in opened.readers - {os.getpid()}:
            self._write(f"read {pid}")

    def _describe(self, at_s: float, end: ExitEvent, ends: Mapping[tuple[int, int], int]) -> None:
        """Write down where the last words of a failed process are."""
        since_s = max(at_s - LAST_WORDS_S, self._gpu_since.get(end.pid, 0.0))
        reached_s, seen_s = self._near.get(end.pid, (0.0, 0.0))
        is_near = at_s - seen_s <= NEAR_S and at_s - reached_s <= GROWN_S
        held = self._held_by_others() if any(output.appends for output in self._outputs.values()) else frozenset()
        is_silent = True
        for key, end_bytes in ends.items():
            output = self._outputs[key]
            kind = "appended" if output.appends else "own"
            begin, later = output.size_at(since_s), output.measure(time.monotonic())
            is_silent &= later <= begin
            if later > begin and not (output.appends and key in held):
                self._write(f"output {end.pid} {begin} {end_bytes} {later} {kind} {output.path}")
        if is_near:
            self._write(f"{'full' if is_silent else 'near'} {end.pid}")

    def _measure(self, pids: Iterable[int]) -> None:
        """Find what *pids* write, and measure all that is known."""
        for pid in pids:
            for key, (path, name, appends) in _written_files(pid).items():
                if key not in self._outputs and len(self._outputs) < LIMIT_OUTPUTS and "\n" not in path:
                    with suppress(OSError):
                        descriptor = os.open(name, os.O_PATH | os.O_CLOEXEC)
                        self._outputs[key] = _Output(descriptor=descriptor, path=path, appends=appends)
        now_s = time.monotonic()
        for output in self._outputs.values():
            output.measure(now_s)

    def _held_by_others(self) -> frozenset[tuple[int, int]]:
        """Return the job's outputs that this user's processes outside the job write, on this node."""
        # The manager's process that started the job has the job's output open, too, and what it started may have ended.
        own = self._processes.refresh() | self._starters
        held: set[tuple[int, int]] = set()
        for each in PROC.iterdir():
            with suppress(OSError):
                pid = int(each.name) if each.name.isdigit() else 0
                if pid and pid not in own and each.stat().st_uid == self._uid:
                    files = _written_files(pid).keys() & self._outputs.keys()
                    # What the job has just started was nobody's before, and until its exec not even has its marks.
                    if files and not self._processes.owns(pid) and int(self._processes.stat(pid)[1]) not in own - {1}:
                        held |= files
        return frozenset(held)

    def _write(self, line: str) -> None:
        os.write(self._log, f"{line}\n".encode(errors="surrogateescape"))


def _written_files(pid: int) -> dict[tuple[int, int], tuple[str, str, bool]]:
    """Return the path, the name below /proc, and whether it appends, of each regular file that *pid* writes."""
    written = {}
    folder = PROC / str(pid)
    with suppress(OSError):
        for link in os.scandir(folder / "fd"):
            with suppress(OSError, StopIteration, ValueError):
                # Of a thousand open files few are outputs: the mode of the link says for what each was opened.
                if not link.stat(follow_symlinks=False).st_mode & stat.S_IWUSR:
                    continue
                path = str(Path(link).readlink())
                if not path.startswith("/") or path.startswith(("/dev/", "/proc/", "/memfd:")):
                    continue
                status = link.stat()
                lines = (folder / "fdinfo" / link.name).read_text().splitlines()
                flags = int(next(line for line in lines if line.startswith("flags:")).split()[1], 8)
                if stat.S_ISREG(status.st_mode):
                    written[status.st_dev, status.st_ino] = (path, link.path, bool(flags & os.O_APPEND))
    return written
