"""GPUs that are not there: who stands on each, how fast each job goes, and when it will be done.

Times are those of the emulated cluster, in seconds. Nothing here looks at a clock.

Invariants:

1. A job does exactly its work: time on a GPU times the speed there, whoever comes and goes beside it.
2. Each stay on a GPU is recorded once, when it ends.

Their owner is one thread behind one Unix socket: jobs' processes report where they run, and learn when and how they
end; between events it sleeps. An emulated second takes ``1 / compression`` seconds.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from types import MappingProxyType
from typing import Literal

from gpusage_planning.simulator.contract import Tenant, Truth
from gpusage_planning.simulator.engine import OUT_OF_MEMORY_S

Ending = Literal["done", "out_of_memory", "gone"]
"""Whether the job did its work, had too little memory, or was ended by somebody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a job is, and what it may use.

    Attributes:
        gpu_type: Index into the cluster's types.
        device: The GPU's number on its node.
        thread_percent: 100 where nothing limits it.
        memory_cap_bytes: Infinite without a cap.
    """

    node: str
    gpu_type: int
    device: int
    thread_percent: int = 100
    memory_cap_bytes: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A job's time on a GPU, from one second of the emulated cluster to another."""

    job: int
    node: str
    device: int
    start_s: float
    end_s: float
    ending: Ending


@dataclass(slots=True, kw_only=True)
class _Run:
    """A job on its GPU: *left_s* of work as of *since_s*, at *speed* from then on."""

    seat: Seat
    start_s: float
    left_s: float
    since_s: float
    starves: bool
    speed: float = 1.0

    @property
    def end_s(self) -> float:
        return self.since_s + max(self.left_s, 0.0) / self.speed


class VirtualGpus:
    """All GPUs of an emulated cluster.

    Attributes:
        stays: Those that have ended, in the order of their ends.
        busy_s: Sum over GPUs of time times busy share.
    """

    def __init__(
        self, truth: Truth, kinds: Sequence[int], work_s: Sequence[float], memory_bytes: Sequence[float]
    ) -> None:
        """Store what happens, each job's kind and work, and each GPU type's memory."""
        self.stays: list[Stay] = []
        self.busy_s = 0.0
        self._truth, self._kinds, self._work_s, self._memory_bytes = truth, kinds, work_s, memory_bytes
        self._runs: dict[int, _Run] = {}
        self._here: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self._busy: dict[tuple[str, int], tuple[float, float]] = {}

    def arrive(self, job: int, seat: Seat, now_s: float) -> None:
        """Put *job* on a GPU; it starves if there is not enough memory for it."""
        here = self._here[seat.node, seat.device]
        own, *others = (self._truth.memory_bytes(self._kinds[one], seat.gpu_type) for one in (job, *here))
        starves = own > seat.memory_cap_bytes or own + sum(others) > self._memory_bytes[seat.gpu_type]
        work_s = OUT_OF_MEMORY_S if starves else self._work_s[job]
        self._runs[job] = _Run(seat=seat, start_s=now_s, left_s=work_s, since_s=now_s, starves=starves)
        here.append(job)
        self._retime(seat, now_s)

    def leave(self, job: int, now_s: float, *, is_gone: bool = False) -> Ending:
        """Take *job* off its GPU, and return how its stay ended."""
        run = self._runs.pop(job)
        ending: Ending = "gone" if is_gone else "out_of_memory" if run.starves else "done"
        seat = run.seat
        self.stays.append(
            Stay(job=job, node=seat.node, device=seat.device, start_s=run.start_s, end_s=now_s, ending=ending)
        )
        self._here[seat.node, seat.device].remove(job)
        self._retime(seat, now_s)

        return ending

    def next_end(self) -> tuple[float, int]:
        """Return when the next job will be off its GPU by itself, and which; infinite and -1 where none is there."""
        return min(((run.end_s, job) for job, run in self._runs.items()), default=(inf, -1))

    def __contains__(self, job: object) -> bool:
        return job in self._runs

    def _retime(self, seat: Seat, now_s: float) -> None:
        """Compute the speed of each job on one GPU from now on."""
        place = (seat.node, seat.device)
        since_s, busy = self._busy.get(place, (now_s, 0.0))
        self.busy_s += (now_s - since_s) * busy
        speeds, busy = self._scene(self._here[place], seat.gpu_type)
        self._busy[place] = (now_s, busy)

        for job, speed in speeds.items():
            run = self._runs[job]
            run.left_s -= (now_s - run.since_s) * run.speed
            run.since_s, run.speed = now_s, 1.0 if run.starves else speed

    def _scene(self, jobs: Sequence[int], gpu_type: int) -> tuple[Mapping[int, float], float]:
        """Return the work that each of *jobs* does in a second beside the others, and the GPU's busy share."""
        if not jobs:
            return {}, 0.0

        tenants = [Tenant(self._kinds[job], self._runs[job].seat.thread_percent) for job in jobs]
        together = self._truth.colocation_of(tenants, gpu_type)
        speeds = {
            job: speed * self._truth.speed(self._kinds[job], gpu_type)
            for job, speed in zip(jobs, together.speeds, strict=True)
        }
        return speeds, together.utilization


LONGEST_SLEEP_S = 0.2
MOST_BYTES = 4096
AS_CALLED: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class _Body:
    """The connection to a job's process; the job's number once the process has sent it."""

    connection: socket.socket
    job: int | None = None


class Coordinator:
    """Virtual GPUs behind a socket.

    Attributes:
        gpus: Read them when all jobs are done.
        done: How many jobs have done their work.
        latest_s: By how much a job learned its end too late in the worst case, in seconds of the real clock.
    """

    def __init__(
        self, gpus: VirtualGpus, site_types: Sequence[str], compression: float, nodes: Mapping[str, str] = AS_CALLED
    ) -> None:
        """Store who stands where, and the *nodes*' names by what bodies call them, where that is something else."""
        self.gpus = gpus
        self.done = 0
        self.latest_s = 0.0
        self._site_types, self._compression, self._nodes = site_types, compression, nodes
        self._origin_s = time.monotonic()
        self._bodies: dict[int, _Body] = {}
        self._selector = DefaultSelector()
        self._ends = False

    @property
    def now_s(self) -> float:
        """Return the time on the emulated cluster, 0 when the clock was started."""
        return (time.monotonic() - self._origin_s) * self._compression

    def start_clock(self) -> None:
        """Let the emulated time begin; no job runs yet."""
        self._origin_s = time.monotonic()

    @contextmanager
    def listening(self, path: Path) -> Iterator[None]:
        """Answer bodies on the socket *path*."""
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen(128)
            self._selector.register(server, EVENT_READ)
            thread = threading.Thread(target=self._serve, args=(server,), daemon=True)
            thread.start()
            try:
                yield
            finally:
                self._ends = True
                thread.join()
                path.unlink()

    def _serve(self, server: socket.socket) -> None:
        while not self._ends:
            # Never longer than the next end, so that bodies learn theirs in time.
            ready = self._selector.select(self._sleep_s())
            self._end_jobs()
            for key, _ in ready:
                if isinstance(key.data, _Body):
                    self._receive(key.data)
                else:
                    connection = server.accept()[0]
                    self._selector.register(connection, EVENT_READ, _Body(connection))
        for body in self._bodies.values():
            body.connection.close()

    def _sleep_s(self) -> float:
        wait_s = (self.gpus.next_end()[0] - self.now_s) / self._compression
        return min(max(wait_s, 0.0), LONGEST_SLEEP_S)

    def _receive(self, body: _Body) -> None:
        """Let a job in that says where it is; take one off its GPU whose body is gone."""
        if body.connection.fileno() < 0:
            return  # it got its end a moment ago

        text = body.connection.recv(MOST_BYTES).decode()
        if text and body.job is None:
            body.job, seat = parsed(text, self._site_types, self._nodes)
            self._bodies[body.job] = body
            self.gpus.arrive(body.job, seat, self.now_s)
            return
        self._disconnect(body)
        if body.job is not None and self._bodies.pop(body.job, None) is not None:
            self.gpus.leave(body.job, self.now_s, is_gone=True)

    def _end_jobs(self) -> None:
        """Tell the jobs whose work is done how they ended; what counts is when it was done, as we may be late."""
        while True:
            end_s, job = self.gpus.next_end()
            if end_s > self.now_s:
                return
            self.latest_s = max(self.latest_s, (self.now_s - end_s) / self._compression)
            ending = self.gpus.leave(job, end_s)
            self.done += ending == "done"
            body = self._bodies.pop(job)
            with suppress(OSError):  # the body was ended from outside
                body.connection.sendall(ending.encode())
            self._disconnect(body)

    def _disconnect(self, body: _Body) -> None:
        self._selector.unregister(body.connection)
        body.connection.close()


def parsed(text: str, site_types: Sequence[str], nodes: Mapping[str, str] = AS_CALLED) -> tuple[int, Seat]:
    """Return the job and its seat that a body's line says; a node's name is its type and a number.

    Args:
        text: The line.
        site_types: Names of the GPU types, in their order.
        nodes: Names of nodes by what the body calls them, where that is something else.

    Raises:
        ValueError: It is no such line.
    """
    job, called, device, percent, cap = text.split()
    node = nodes.get(called, called)
    seat = Seat(
        node=node,
        gpu_type=site_types.index(node.rpartition("-")[0]),
        device=int(device),
        thread_percent=int(percent),
        memory_cap_bytes=float(cap) or inf,
    )
    return int(job), seat
