"""The jobs that wait, by role: jobs of one role are alike, so where the first does not fit, none does."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from gpusage_planning.simulator.contract import Steady
from gpusage_planning.simulator.queue_state import Queue

Lane = tuple[float, tuple[int, ...]]
"""GPUs of a job, and the types that may run it."""


class Waiting:
    """A heap for each role; its entries are job numbers, of which the least is the oldest and the first job."""

    def __init__(self) -> None:
        self._heaps: dict[int, list[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._heaps)

    def __contains__(self, role: object) -> bool:
        return role in self._heaps

    def add(self, role: int, job: int) -> bool:
        """Add *job* to the queue; return whether it is the only one of *role*."""
        heap = self._heaps.get(role)
        if heap is None:
            self._heaps[role] = [job]
            return True
        heappush(heap, job)
        return False

    def pop(self, role: int) -> int:
        """Remove the first job of *role*, of which one waits."""
        heap = self._heaps[role]
        job: int = heappop(heap)
        if not heap:
            del self._heaps[role]
        return job

    def head(self, role: int) -> int:
        """Return the first job of *role*, of which one waits."""
        job: int = self._heaps[role][0]
        return job

    def entry(self, role: int) -> Any:  # compares with others
        """Return the entry of the first job of *role*, of which one waits."""
        return self._heaps[role][0]

    def heads(self) -> Iterator[tuple[int, Any]]:
        """Yield each role that waits with its first entry; entries compare as their jobs stand in the queue."""
        for role, heap in self._heaps.items():
            yield role, heap[0]

    def jobs(self) -> Iterator[tuple[int, int]]:
        """Yield each job that waits with its role."""
        for role, heap in self._heaps.items():
            for job in heap:
                yield job, role

    def first(self) -> tuple[int, int]:
        """Return job and role of the first of all, where one waits."""
        return min((heap[0], role) for role, heap in self._heaps.items())


class Ranked(Waiting):
    """The same in an order's ranks; an entry is a rank and a job number."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self._queue, self._order = queue, queue.ordering.order
        self._next_s = queue.now_s + self._order.period_s

    def add(self, role: int, job: int) -> bool:
        """Add *job* to the queue; return whether it is the first one of *role*."""
        queue = self._queue
        entry = self._order.rank(queue.enter(job, role), queue.now_s, queue), job
        heap = self._heaps.setdefault(role, [])
        heappush(heap, entry)
        return bool(heap[0] == entry)

    def pop(self, role: int) -> int:
        """Remove the first job of *role*, of which one waits."""
        heap = self._heaps[role]
        _, job = heappop(heap)
        if not heap:
            del self._heaps[role]
        return int(job)

    def head(self, role: int) -> int:
        """Return the first job of *role*, of which one waits."""
        return int(self._heaps[role][0][1])

    def jobs(self) -> Iterator[tuple[int, int]]:
        """Yield each job that waits with its role."""
        for role, heap in self._heaps.items():
            for _, job in heap:
                yield job, role

    def first(self) -> tuple[int, int]:
        """Return job and role of the first of all, where one waits."""
        (_, job), role = min((heap[0], role) for role, heap in self._heaps.items())
        return job, role

    def refresh(self) -> None:
        """Rank all jobs anew, once it is time."""
        queue = self._queue
        if queue.now_s >= self._next_s:
            self._next_s = queue.now_s + self._order.period_s
            for heap in self._heaps.values():
                heap[:] = [(self._order.rank(queue.jobs[job], queue.now_s, queue), job) for _, job in heap]
                heapify(heap)


class Pool(Waiting):
    """Jobs that wait where many are ranked at a time, in lanes of those that are alike for whoever looks for room.

    Attributes:
        lanes: Of each number of GPUs and types, the jobs in their order; all ranks are 0 if they change meanwhile.
    """

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self.lanes: dict[Lane, list[tuple[float, int]]] = {}
        self._queue = queue
        self._order = order if isinstance(order := queue.ordering.order, Steady) else None
        self._jobs: dict[int, tuple[int, Lane, tuple[float, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def add(self, role: int, job: int) -> bool:
        """Let *job* wait."""
        queue, order = self._queue, self._order
        queued = queue.enter(job, role)
        lane = queued.gpus, queued.types
        entry = order.rank(queued, queue.now_s, queue) if order else 0.0, job
        self._jobs[job] = role, lane, entry
        insort(self.lanes.setdefault(lane, []), entry)
        return False

    def remove(self, job: int) -> None:
        """Let *job* no more wait."""
        _, lane, entry = self._jobs.pop(job)
        entries = self.lanes[lane]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del self.lanes[lane]

    def jobs(self) -> Iterator[tuple[int, int]]:
        """Yield each job that waits with its role."""
        for job, (role, _, _) in self._jobs.items():
            yield job, role
