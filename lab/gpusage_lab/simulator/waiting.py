"""The jobs that wait, by role: jobs of one role are alike, so where the oldest does not fit, none does."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush


class Waiting:
    """A heap of job numbers for each role; the least number is the oldest job."""

    def __init__(self) -> None:
        self._heaps: dict[int, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._heaps)

    def __contains__(self, role: object) -> bool:
        return role in self._heaps

    def add(self, role: int, job: int) -> None:
        """Let *job* wait."""
        heap = self._heaps.get(role)
        if heap is None:
            self._heaps[role] = [job]
        else:
            heappush(heap, job)

    def pop(self, role: int) -> int:
        """Take the oldest job of *role*, of which one waits."""
        heap = self._heaps[role]
        job = heappop(heap)
        if not heap:
            del self._heaps[role]
        return job

    def head(self, role: int) -> int:
        """Return the oldest job of *role*, of which one waits."""
        return self._heaps[role][0]

    def heads(self) -> Iterator[tuple[int, int]]:
        """Yield each role that waits with its oldest job."""
        for role, heap in self._heaps.items():
            yield role, heap[0]

    def jobs(self) -> Iterator[tuple[int, int]]:
        """Yield each job that waits with its role."""
        for role, heap in self._heaps.items():
            for job in heap:
                yield job, role

    def oldest(self) -> tuple[int, int]:
        """Return job and role of the oldest of all, where one waits."""
        return min((heap[0], role) for role, heap in self._heaps.items())
