"""The jobs that wait, by role: jobs of one role are alike, so where the first does not fit, none does."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from gpusage_lab.simulator.queue_state import Queue


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
    """Jobs that wait in no order, each with its role, where all are ranked anew each time."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self._queue = queue
        self._roles: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._roles)

    def add(self, role: int, job: int) -> bool:
        """Let *job* wait."""
        self._queue.enter(job, role)
        self._roles[job] = role
        return False

    def remove(self, job: int) -> None:
        """Let *job* no more wait."""
        del self._roles[job]

    def jobs(self) -> Iterator[tuple[int, int]]:
        """Yield each job that waits with its role."""
        yield from self._roles.items()
