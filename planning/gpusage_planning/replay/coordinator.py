"""The owner of the virtual GPUs: jobs' processes report where they run, and learn when and how they end.

One thread, one Unix socket; between events it sleeps. An emulated second takes ``1 / compression`` seconds.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from types import MappingProxyType

from gpusage_planning.replay.virtual_gpus import Seat, VirtualGpus

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
