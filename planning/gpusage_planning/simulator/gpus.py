"""The GPUs of a running simulation: who stands where, where there is room, and when each job will end.

Invariants:

1. An empty GPU that is not reserved is in its type's `Nodes`; one with room beside others is in the list of its type
   and its set, in the order of numbers.
2. A reserved GPU is given out by the engine alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from gpusage_planning.simulator.fleet import Fleet, Nodes
from gpusage_planning.simulator.roles import GpuSet, Roles

EMPTY: GpuSet = ()
Way = Literal["work", "profile", "out_of_memory", "start"]
"""Whether a run does the job's work to its end, only takes time until the job waits again, or precedes its work."""


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
        stranded_s: Sum over GPUs of the time in which they were empty on a node in use; of types with nodes.
        empty_s: The same on any node.
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
        self.stranded_s = self.empty_s = 0.0
        self._roles, self._spreads = roles, fleet.spreads_jobs
        self._since_s = [0.0] * count
        self._open: list[dict[GpuSet, list[int]]] = [{} for _ in counts]
        self.nodes = [
            Nodes(start, one.gpu_count, one.node_gpu_count, spreads=fleet.spreads_jobs)
            for start, one in zip(fleet.starts, fleet.types, strict=True)
        ]
        self._in_use = [[0] * max(one.gpu_count // one.node_gpu_count, 1) for one in fleet.types]
        self._per_node = [one.gpus_per_node for one in fleet.types]
        self._stranded = 0
        self._empty = sum(one.gpu_count for one in fleet.types if one.gpus_per_node)
        self._counted_s = 0.0

    def begin(self, now_s: float) -> None:
        """Let every GPU's time begin at *now_s*."""
        self._since_s = [now_s] * len(self._since_s)
        self._counted_s = now_s

    def cheapest(self, gpu_type: int, role: int) -> int | None:
        """Return the GPU of a type on which *role* costs least, the first among equals; ``None`` where none is."""
        roles = self._roles
        best: tuple[float, int] | None = None
        cost = roles.cost(gpu_type, EMPTY, role)
        if cost is not None and (empty := self.nodes[gpu_type].first()) is not None:
            best = (cost, empty)

        for here, gpus in self._open[gpu_type].items():
            costs = roles.costs(gpu_type, here)
            cost = costs[role] if role in costs else roles.ask_cost(gpu_type, here, role)
            if cost is not None and (best is None or (cost, gpus[0]) < best):
                best = (cost, gpus[0])
        return None if best is None else best[1]

    def open_sets(self, gpu_type: int) -> list[GpuSet]:
        """Return the sets that stand on GPUs of a type on which others may have room."""
        return [*self._open[gpu_type]]

    def fits(self, gpu_type: int, role: int) -> bool:
        """Return whether *role*, a job on several GPUs, has room on empty ones of a type that are not reserved."""
        return self.nodes[gpu_type].fits(self._roles.counts[role])

    def allocate(self, gpu_type: int, role: int) -> list[int]:
        """Take the GPUs for *role*, which fits, to move onto them."""
        return self.nodes[gpu_type].allocate(self._roles.counts[role])

    def give_back(self, gpus: Iterable[int]) -> None:
        """Let *gpus* be empty again, which were taken and not moved onto."""
        for gpu in gpus:
            self._offer(gpu)

    def move(self, gpu: int, here: GpuSet, now_s: float) -> None:
        """Let the set *here* stand on *gpu* from now on."""
        before, gpu_type = self.here[gpu], self.type_of[gpu]
        self._count(gpu, now_s)
        if gpu not in self.reserved:
            self._withdraw(gpu)
        self.here[gpu] = here
        if bool(here) != bool(before):
            self._count_stranded(gpu_type, self.nodes[gpu_type].node(gpu), 1 if here else -1, now_s)
        if gpu in self.reserved:
            return

        self.free_count[gpu_type] += (not here) - (not before)
        self._offer(gpu)

    def reserve(self, gpus: Iterable[int]) -> None:
        """Hold *gpus*, which nothing is reserved of yet."""
        for gpu in gpus:
            self.free_count[self.type_of[gpu]] -= not self.here[gpu]
            self._withdraw(gpu)
            self.reserved.add(gpu)

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
        self._count_stranded(0, 0, 0, now_s)

    def _count_stranded(self, gpu_type: int, node: int, change: int, now_s: float) -> None:
        """Count empty GPUs on nodes in use up to *now_s*, where as many GPUs of *node* as *change* says are in use."""
        spent_s = now_s - self._counted_s
        self.stranded_s += self._stranded * spent_s
        self.empty_s += self._empty * spent_s
        self._counted_s = now_s
        per_node = self._per_node[gpu_type]
        if per_node is None:
            return

        before = self._in_use[gpu_type][node]
        after = self._in_use[gpu_type][node] = before + change
        self._stranded += (per_node - after) * (after > 0) - (per_node - before) * (before > 0)
        self._empty -= change

    def _count(self, gpu: int, now_s: float) -> None:
        here, spent_s = self.here[gpu], now_s - self._since_s[gpu]
        self.tenant_s[len(here)] += spent_s
        if here:
            gpu_type = self.type_of[gpu]
            self.busy_s[gpu_type] += spent_s * self._roles.scene(gpu_type, here).utilization
        self._since_s[gpu] = now_s

    def _offer(self, gpu: int) -> None:
        here = self.here[gpu]
        if not here:
            self.nodes[self.type_of[gpu]].add(gpu)
        elif not self._roles.is_closed(here):
            insort(self._open[self.type_of[gpu]].setdefault(here, []), gpu)

    def _withdraw(self, gpu: int) -> None:
        """Offer *gpu* no more."""
        here, gpu_type = self.here[gpu], self.type_of[gpu]
        if not here:
            self.nodes[gpu_type].remove(gpu)
            return

        if (gpus := self._open[gpu_type].get(here)) is not None:
            del gpus[bisect_left(gpus, gpu)]
            # Or sets of jobs that never come again would pile up.
            if not gpus:
                del self._open[gpu_type][here]


class Run:
    """One job on its GPUs, until it ends or is sent back."""

    __slots__ = ("gpus", "left_s", "role", "since_s", "speed", "started_s", "version", "way")

    def __init__(self, role: int, gpus: Sequence[int], way: Way, left_s: float, now_s: float) -> None:
        self.role, self.gpus, self.way, self.left_s = role, gpus, way, left_s
        self.since_s = self.started_s = now_s
        self.speed, self.version = 0.0, 0


class Runs:
    """All runs that go on, and the times at which they end."""

    def __init__(self, gpus: Gpus, roles: Roles) -> None:
        self._gpus, self._roles = gpus, roles
        self._runs: dict[int, Run] = {}
        self._ends: list[tuple[float, int, int]] = []
        self._version = 0

    def begin(self, job: int, run: Run, now_s: float) -> None:
        """Put *job* on its GPUs."""
        self._runs[job] = run
        gpus = self._gpus
        for gpu in run.gpus:
            gpus.jobs[gpu].append(job)
            gpus.started[gpu] += 1
            gpus.move(gpu, tuple(sorted((*gpus.here[gpu], run.role))), now_s)
        self._retime(run.gpus[0], now_s)

    def next_end(self, before_s: float) -> tuple[float, int, Run] | None:
        """Take the next job that ends no later than *before_s* off its GPUs; ``None`` where none does."""
        ends, runs = self._ends, self._runs
        while ends and ends[0][0] <= before_s:
            now_s, job, version = heappop(ends)
            run = runs.get(job)
            # Each change of speed adds another end; older ones are skipped by their version.
            if run is not None and run.version == version:
                self._leave(job, run, now_s)
                return now_s, job, run

        return None

    def has_end_at(self, now_s: float) -> bool:
        """Return whether another job ends at *now_s*."""
        ends = self._ends
        while ends and ((run := self._runs.get(ends[0][1])) is None or run.version != ends[0][2]):
            heappop(ends)
        return bool(ends) and ends[0][0] <= now_s

    def role(self, job: int) -> int:
        """Return the role of *job*, which is on GPUs."""
        return self._runs[job].role

    def suspend(self, job: int, now_s: float) -> Run:
        """Take *job* off its GPUs before its end; its run has what is left."""
        run = self._runs[job]
        run.left_s = self.left(job, now_s)[1]
        self._leave(job, run, now_s)
        return run

    def left(self, job: int, now_s: float) -> tuple[Way, float]:
        """Return what *job* does, and how much of it is left."""
        run = self._runs[job]
        return run.way, max(run.left_s - (now_s - run.since_s) * run.speed, 0.0)

    def items(self) -> Iterator[tuple[int, Run]]:
        """Yield each job that is on GPUs with its run."""
        yield from self._runs.items()

    def _leave(self, job: int, run: Run, now_s: float) -> None:
        del self._runs[job]
        gpus = self._gpus

        for gpu in run.gpus:
            gpus.jobs[gpu].remove(job)
            here = gpus.here[gpu]
            at = here.index(run.role)
            gpus.move(gpu, here[:at] + here[at + 1 :], now_s)
            self._retime(gpu, now_s)

    def _retime(self, gpu: int, now_s: float) -> None:
        """Compute again when the jobs on *gpu* end, after one came or left at *now_s*."""
        gpus = self._gpus
        jobs = gpus.jobs[gpu]
        if not jobs:
            return

        speeds = self._roles.scene(gpus.type_of[gpu], gpus.here[gpu]).speeds
        for job in jobs:
            run = self._runs[job]
            speed = speeds[run.role] if run.way == "work" else 1.0
            # Most arrivals change nobody's speed; then the end in the heap is still right.
            if speed == run.speed:
                continue
            run.left_s -= (now_s - run.since_s) * run.speed
            run.since_s, run.speed = now_s, speed
            self._version += 1
            run.version = self._version
            heappush(self._ends, (now_s + max(run.left_s, 0.0) / speed, job, run.version))
