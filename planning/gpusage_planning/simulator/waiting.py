"""Jobs that wait, by role: jobs of one role are alike, so where the first does not fit, none does.

Without `Passes`, the engine starts every job in the moment in which there is room. Slurm does not: its main loop stops
at the first job that has none, and what could start behind that job waits for the next backfill, which in turn keeps
other jobs off the whole node that it foresees for each job without room, unless they end in time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.simulator.gpus import Gpus, Run, Runs
from gpusage_planning.simulator.orders import Queue
from gpusage_planning.simulator.roles import Roles

Lane = tuple[float, tuple[int, ...]]
"""GPUs of a job, and the types that may run it."""


Entry = tuple[float, int]
"""A rank and a job's number; the least is the first."""


class Waiting:
    """The jobs of each role in the order of the queue: the oldest first."""

    def __init__(self) -> None:
        self._queues: dict[int, list[Entry]] = {}
        self._least_s: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, role: int, job: int) -> None:
        """Add *job* to the queue."""
        insort(self._queues.setdefault(role, []), (self.rank(role, job), job))
        self._least_s.pop(role, None)

    def rank(self, _: int, __: int, /) -> float:
        """Return the place in the queue of a job that comes, the least first; the older one among equals."""
        return 0.0

    def remove(self, role: int, entry: Entry) -> None:
        """Remove a job of *role* that waits."""
        queue = self._queues[role]
        del queue[bisect_left(queue, entry)]
        if not queue:
            del self._queues[role]

    def pop(self, role: int) -> int:
        """Remove the first job of *role*, of which one waits."""
        entry = self._queues[role][0]
        self.remove(role, entry)
        return entry[1]

    def head(self, role: int) -> int:
        """Return the first job of *role*, of which one waits."""
        return self._queues[role][0][1]

    def contains(self, role: int, entry: Entry) -> bool:
        """Return whether the job waits."""
        queue = self._queues.get(role, [])
        place = bisect_left(queue, entry)
        return place < len(queue) and queue[place] == entry

    def heads(self) -> Iterator[tuple[int, Entry]]:
        """Yield each role that waits with its first entry."""
        for role, queue in self._queues.items():
            yield role, queue[0]

    def first_within(self, role: int, limit_s: float, limits_s: Sequence[float]) -> Entry | None:
        """Return the first job of *role* that has no longer time limit than *limit_s*; ``None`` where none has."""
        queue = self._queues.get(role, [])
        if limit_s < self._least_s.get(role, 0.0):
            return None
        for entry in queue:
            if limits_s[entry[1]] <= limit_s:
                return entry
        # Jobs that leave can only raise it, so the next searches in vain are short.
        self._least_s[role] = min((limits_s[job] for _, job in queue), default=inf)
        return None

    def jobs(self) -> Iterator[tuple[int, int]]:
        """Yield each job that waits with its role."""
        for role, queue in self._queues.items():
            for _, job in queue:
                yield job, role

    def first(self) -> tuple[int, int]:
        """Return job and role of the first of all, where one waits."""
        (_, job), role = min((queue[0], role) for role, queue in self._queues.items())
        return job, role


class Ranked(Waiting):
    """The same in an order's ranks."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self._queue, self._order = queue, queue.ordering.order
        self._next_s = queue.now_s + self._order.period_s

    def rank(self, role: int, job: int) -> float:
        """Return the order's rank of a job that comes."""
        return self._order.rank(self._queue.enter(job, role), self._queue.now_s, self._queue)

    def refresh(self) -> None:
        """Rank all jobs anew, once it is time."""
        queue = self._queue
        if queue.now_s >= self._next_s:
            self._next_s = queue.now_s + self._order.period_s
            for waiting in self._queues.values():
                waiting[:] = sorted((self._order.rank(queue.jobs[job], queue.now_s, queue), job) for _, job in waiting)


class Pool(Waiting):
    """Jobs that wait where many are ranked at a time, in lanes of those that are alike for whoever looks for room.

    Attributes:
        lanes: Of each number of GPUs and types, the jobs in their order; all ranks are 0 if they change meanwhile.
    """

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self.lanes: dict[Lane, list[tuple[float, int]]] = {}
        self._queue = queue
        self._order = queue.ordering.order
        self._jobs: dict[int, tuple[int, Lane, tuple[float, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def add(self, role: int, job: int) -> None:
        """Let *job* wait."""
        queue, order = self._queue, self._order
        queued = queue.enter(job, role)
        lane = queued.gpus, queued.types
        entry = order.rank(queued, queue.now_s, queue) if order.is_steady else 0.0, job
        self._jobs[job] = role, lane, entry
        insort(self.lanes.setdefault(lane, []), entry)

    def drop(self, job: int) -> None:
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


Place = Callable[[int, float], bool]
"""Starts the oldest job of a role if there is room for it, and returns whether there was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """A workload manager's own times, in seconds of the simulated clock.

    Attributes:
        backfill_s: From one look at the whole queue to the next, above 0.
        start_s: For how long a job has its GPUs before its work begins: epilog, launch and prolog.
        requeue_s: For how long a job that ran out of memory is not in the queue.
        gpus_per_node: Of every type.
    """

    backfill_s: float
    start_s: float = 0.0
    requeue_s: float = 0.0
    gpus_per_node: int = 1


class Passes:
    """Jobs that wait, as a workload manager goes through them.

    Attributes:
        until_s: When the first of the held nodes is needed, during a look at the whole queue.
    """

    def __init__(self, scheduling: Scheduling, fleet: Fleet, roles: Roles, gpus: Gpus, waiting: Waiting) -> None:
        self.scheduling = scheduling
        self.until_s = inf
        self._fleet, self._roles, self._gpus, self._waiting = fleet, roles, gpus, waiting
        self._away: list[tuple[float, int, int]] = []
        self._next_pass_s = inf

    def send_away(self, role: int, job: int, now_s: float) -> None:
        """Let *job* be in the queue again after a while."""
        heappush(self._away, (now_s + self.scheduling.requeue_s, job, role))

    def next_end(self, runs: Runs, before_s: float, place: Place) -> tuple[float, int, Run] | None:
        """Return the next end of a run, no later than *before_s*, after whatever the manager does before it."""
        while True:
            act_s = min(self._next_pass_s, self._away[0][0] if self._away else inf)
            event = runs.next_end(min(act_s, before_s))
            if event is not None or act_s > before_s or act_s == inf:
                return event

            while self._away and self._away[0][0] <= act_s:
                _, job, role = heappop(self._away)
                self._waiting.add(role, job)
            if self._next_pass_s <= act_s:
                self._next_pass_s = inf
                self._backfill(act_s, place)
            else:
                self.in_order(act_s, place)

    def in_order(self, now_s: float, place: Place) -> None:
        """Start jobs until the first one for which there is no room; the next look is for those behind it."""
        # Slurm's main loop stops at the first job without room (docs/decisions/planning.md).
        while self._waiting and place(self._waiting.first()[1], now_s):
            pass
        if self._waiting and self._next_pass_s == inf:
            period_s = self.scheduling.backfill_s
            # A multiple of the period: the manager's clock does not start with a job.
            self._next_pass_s = (now_s // period_s + 1) * period_s

    def _backfill(self, now_s: float, place: Place) -> None:
        """Try every job, the oldest first; behind one without room, a node is held for it."""
        self.until_s = inf
        for _, role in sorted(self._waiting.jobs()):
            # Backfill keeps a whole node for each job without room, so shares suffer more from it than whole GPUs.
            if not place(role, now_s):
                self._reserve_node(role)
        self._gpus.release()

    def _reserve_node(self, role: int) -> None:
        """Hold the node on which a job of *role* is expected to start first, of those that are not held yet."""
        gpus, types = self._gpus, self._roles.demands[role].types
        open_gpus = [
            gpu for gpu in range(self._fleet.gpu_count) if gpu not in gpus.reserved and gpus.type_of[gpu] in types
        ]
        if open_gpus:
            first = min(open_gpus, key=lambda gpu: (gpus.empty_at_s[gpu], types.index(gpus.type_of[gpu])))
            self.until_s = min(self.until_s, float(gpus.empty_at_s[first]))
            gpus.reserve(gpu for gpu in self._node(first) if gpu not in gpus.reserved)

    def _node(self, gpu: int) -> range:
        """Return the GPUs of the node that has *gpu*; nodes do not mix types."""
        gpu_type, per_node = self._gpus.type_of[gpu], self.scheduling.gpus_per_node
        start, count = self._fleet.starts[gpu_type], self._fleet.types[gpu_type].gpu_count
        first = start + (gpu - start) // per_node * per_node
        return range(first, min(first + per_node, start + count))
