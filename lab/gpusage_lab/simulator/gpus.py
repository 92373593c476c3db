"""The GPUs of a running simulation: who stands where, where there is room, and how busy they are.

Invariants:

1. A GPU with room that is not reserved is in the heap of its type and its set; what else is in that heap is skipped.
2. A reserved GPU is given out by the engine alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

import numpy as np

from gpusage_lab.simulator.fleet import Fleet
from gpusage_lab.simulator.roles import GpuSet, Roles

EMPTY: GpuSet = ()


class Gpus:
    """Who stands on each GPU.

    Attributes:
        here: Each GPU's set of roles.
        jobs: Each GPU's jobs.
        type_of: Each GPU's type.
        free_count: Of each type, GPUs that are empty and not reserved.
        reserved: GPUs that are held for the oldest job that waits.
        empty_at_s: When each GPU is expected to be empty.
        busy_s: Of each type, the sum over its GPUs of time times busy share.
        tenant_s: Sum over GPUs of the time with as many jobs as the index says.
        started: How many jobs each GPU was given.
    """

    def __init__(self, fleet: Fleet, roles: Roles, most_per_gpu: int) -> None:
        counts, count = [one.gpu_count for one in fleet.types], fleet.gpu_count
        self.here: list[GpuSet] = [EMPTY] * count
        self.jobs: list[list[int]] = [[] for _ in range(count)]
        self.type_of = [index for index, number in enumerate(counts) for _ in range(number)]
        self.free_count = list(counts)
        self.reserved: set[int] = set()
        self.empty_at_s = np.zeros(count)
        self.busy_s = [0.0] * len(counts)
        self.tenant_s = [0.0] * (most_per_gpu + 1)
        self.started = [0] * count
        self._roles = roles
        self._since_s = [0.0] * count
        self._open: list[dict[GpuSet, list[int]]] = [
            {EMPTY: list(range(start, start + number))} for start, number in zip(fleet.starts, counts, strict=True)
        ]

    def begin(self, now_s: float) -> None:
        """Let every GPU's time begin at *now_s*."""
        self._since_s = [now_s] * len(self._since_s)

    def cheapest(self, gpu_type: int, role: int) -> int | None:
        """Return the GPU of a type on which *role* is least dear, the first among equals; ``None`` where none is."""
        best: tuple[float, int] | None = None
        heaps, roles = self._open[gpu_type], self._roles
        gone = []
        for here, heap in heaps.items():
            costs = roles.costs(gpu_type, here)
            cost = costs[role] if role in costs else roles.ask_cost(gpu_type, here, role)
            if cost is None or (best is not None and cost > best[0]):
                continue
            gpu = self._first(heap, here)
            if gpu is None:
                gone.append(here)
            elif best is None or (cost, gpu) < best:
                best = (cost, gpu)
        for here in gone:
            del heaps[here]
        return None if best is None else best[1]

    def empties(self, gpu_type: int, count: int) -> list[int]:
        """Take *count* empty GPUs of a type that are not reserved, of which there are so many, to move onto them."""
        heap = self._open[gpu_type].get(EMPTY, [])
        taken: list[int] = []
        while len(taken) < count:
            gpu = heappop(heap)
            if not self.here[gpu] and gpu not in self.reserved and gpu not in taken:
                taken.append(gpu)
        return taken

    def move(self, gpu: int, here: GpuSet, now_s: float) -> None:
        """Let the set *here* stand on *gpu* from now on."""
        before, gpu_type = self.here[gpu], self.type_of[gpu]
        self._count(gpu, now_s)
        self.here[gpu] = here
        if gpu in self.reserved:
            return
        self.free_count[gpu_type] += (not here) - (not before)
        self._offer(gpu)

    def reserve(self, gpus: Iterable[int]) -> None:
        """Hold *gpus*, which nothing is reserved of yet."""
        for gpu in gpus:
            self.reserved.add(gpu)
            self.free_count[self.type_of[gpu]] -= not self.here[gpu]

    def release(self) -> None:
        """Let all reserved GPUs go."""
        gpus = sorted(self.reserved)
        self.reserved.clear()
        for gpu in gpus:
            self.free_count[self.type_of[gpu]] += not self.here[gpu]
            self._offer(gpu)

    def end(self, now_s: float) -> None:
        """Count every GPU's time up to *now_s*."""
        for gpu in range(len(self.here)):
            self._count(gpu, now_s)

    def _count(self, gpu: int, now_s: float) -> None:
        here, spent_s = self.here[gpu], now_s - self._since_s[gpu]
        self.tenant_s[len(here)] += spent_s
        if here:
            gpu_type = self.type_of[gpu]
            self.busy_s[gpu_type] += spent_s * self._roles.scene(gpu_type, here).utilization
        self._since_s[gpu] = now_s

    def _offer(self, gpu: int) -> None:
        here = self.here[gpu]
        if self._roles.is_closed(here):
            return
        heaps = self._open[self.type_of[gpu]]
        heap = heaps.get(here)
        if heap is None:
            heap = heaps[here] = []
        heappush(heap, gpu)

    def _first(self, heap: list[int], here: GpuSet) -> int | None:
        """Return the first GPU of *heap* on which the set *here* still stands."""
        while heap:
            gpu = heap[0]
            if self.here[gpu] == here and gpu not in self.reserved:
                return gpu
            heappop(heap)
        return None
