"""The simulation where an order decides which job goes first, and which running jobs are suspended for others.

A policy's own rank (`packing` starts the busiest job first) and its backfill do not count then. Where jobs are
suspended, they go in the order of their ranks: a job runs if its GPU type has as many GPUs left as it asks for,
counted without nodes; jobs behind one that does not fit are tried. That is how Lucid's, Tiresias' and Gavel's
schedulers choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from math import ceil, floor, inf

import numpy as np

from gpusage_planning.simulator.contract import Jobs, Policy, Truth
from gpusage_planning.simulator.engine import Engine
from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.simulator.gpus import Run, Runs
from gpusage_planning.simulator.orders import Ordering, Queue
from gpusage_planning.simulator.result import Result
from gpusage_planning.simulator.waiting import Lane, Pool, Ranked

Entry = tuple[float, int, tuple[int, ...]]
"""A job's rank, its number, and the GPU types on which it has that rank, those to try first at the front."""
LEAST_GPUS = 1e-9
"""GPUs that rounding may bring about."""


@dataclass(slots=True)
class Selection:
    """What changes in a round.

    Attributes:
        suspended: Jobs that run and shall not, or on another GPU type.
        started: Jobs that shall start, the first ones first, each with its GPU type.
    """

    suspended: list[int] = field(default_factory=list)
    started: list[tuple[int, int]] = field(default_factory=list)


class Rounds:
    """The next round, and which jobs run after it.

    Attributes:
        next_s: When it is; infinite where nothing calls for one.
    """

    def __init__(self, queue: Queue, runs: Runs, waiting: Pool, type_of: Sequence[int]) -> None:
        self.next_s = inf
        self._queue, self._runs, self._waiting, self._type_of = queue, runs, waiting, type_of
        self._order = queue.ordering.order

    def request(self, now_s: float) -> None:
        """Have a round as soon as there may be one."""
        period_s = self._order.period_s
        next_s = max(ceil(now_s / period_s) * period_s, now_s) if period_s > 0 else now_s
        self.next_s = min(self.next_s, next_s)

    def select(self) -> Selection:
        """Return what changes now; where somebody still waits and ranks change with time, another round follows."""
        selection = Selection()
        self.next_s = inf
        if not self._waiting:
            return selection

        placed, running = self._placed(), dict(self._runs.items())
        for number, gpu_type in placed.items():
            run = running.get(number)
            if run is None or self._type_of[run.gpus[0]] != gpu_type:
                selection.started.append((number, gpu_type))

        selection.suspended = [
            number
            for number, run in running.items()
            if may_stop(run) and placed.get(number) != self._type_of[run.gpus[0]]
        ]
        if self._waiting or selection.suspended:
            self.next_s = self._after(self._queue.now_s, placed)
        return selection

    def _after(self, now_s: float, placed: Mapping[int, int]) -> float:
        """Return the first multiple of the period after *now_s* at which ranks may differ; never where none will."""
        period_s, queue = self._order.period_s, self._queue
        if period_s == 0:
            return inf

        changes = (self._order.next_change_s(queue.jobs[number], now_s, queue) for number in placed)
        change_s = min(changes, default=inf) if self._order.is_steady else now_s
        if change_s == inf:
            return inf
        next_s = max(floor(change_s / period_s), floor(now_s / period_s) + 1) * period_s
        return next_s if next_s > now_s else next_s + period_s

    def _placed(self) -> dict[int, int]:
        """Return the jobs that shall run with their GPU types, the first ones first."""
        room = [float(one.gpu_count) for one in self._queue.fleet.types]
        running: dict[int, int] = {}

        for number, run in self._runs.items():
            gpu_type = self._type_of[run.gpus[0]]
            if may_stop(run):
                running[number] = gpu_type
            else:
                room[gpu_type] -= self._queue.jobs[number].gpus

        jobs, placed = self._queue.jobs, dict[int, int]()
        least = min(
            [*(jobs[number].gpus for number in running), *(gpus for gpus, _ in self._waiting.lanes)], default=inf
        )
        closed: set[Lane] = set()
        entries = self._steady_entries(running, closed) if self._order.is_steady else self._entries(running)

        for _, number, types in entries:
            gpus = jobs[number].gpus
            if number in placed or (gpus, types) in closed:
                continue
            for gpu_type in types:
                if gpus <= room[gpu_type] + LEAST_GPUS:
                    room[gpu_type] -= gpus
                    placed[number] = gpu_type
                    break
            else:
                closed.add((gpus, types))
                if max(room) + LEAST_GPUS < least:
                    break

        return placed

    def _steady_entries(self, running: Mapping[int, int], closed: set[Lane]) -> Iterator[Entry]:
        """Yield all jobs in their order; those of the lanes that are *closed* meanwhile may be left out."""
        queue, order = self._queue, self._order
        now = [
            (order.rank(job := queue.jobs[number], queue.now_s, queue), number, _first(gpu_type, job.types))
            for number, gpu_type in running.items()
        ]
        lanes = self._waiting.lanes
        return merge(sorted(now), *(_open_entries(lane, lanes[lane], closed) for lane in lanes))

    def _entries(self, running: Mapping[int, int]) -> Iterator[Entry]:
        """Yield the same, each job ranked anew."""
        queue, order = self._queue, self._order
        numbers = [*(number for number, _ in self._waiting.jobs()), *running]
        if not numbers:
            return

        ranks = order.ranks(np.array(numbers, dtype=np.int32), queue.now_s, queue)
        for place in np.lexsort((np.array(numbers), ranks)).tolist():
            number = numbers[place]
            yield ranks[place], number, _first(running.get(number), queue.jobs[number].types)


def _first(current_type: int | None, types: tuple[int, ...]) -> tuple[int, ...]:
    """Return *types*, those to try first at the front: where a job runs, it would stay on its GPU type."""
    return types if current_type is None else tuple(sorted(types, key=lambda one: one != current_type))


def _open_entries(lane: Lane, entries: Sequence[tuple[float, int]], closed: set[Lane]) -> Iterator[Entry]:
    for rank, number in entries:
        if lane in closed:
            return
        yield rank, number, lane[1]


def may_stop(run: Run) -> bool:
    """Return whether a run can be suspended: it works, or gets ready for it."""
    return run.way in ("work", "start")


def simulate_ordered(
    jobs: Jobs,
    fleet: Fleet,
    policy: Policy,
    truth: Truth,
    ordering: Ordering,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Return the result of *jobs* if *ordering* sorts the queue; see `gpusage_planning.simulator.engine`.

    Raises:
        RequestError: A job fits nowhere.
    """
    kind = PreemptiveEngine if ordering.order.preempts else OrderedEngine
    engine = kind(jobs, fleet, policy, truth, progress or (lambda _: None))
    engine.order_by(ordering)
    return engine.run()


class OrderedEngine(Engine):
    """State of a simulation in which running jobs are let run."""

    queue: Queue

    def order_by(self, ordering: Ordering) -> None:
        """Let jobs go first as *ordering* has it, from the beginning."""
        self.result.policy = f"{self.policy.name}+{ordering.order.name}"
        self.backfill = ordering.order.backfill
        self.roles.are_ranked = False
        self.queue = Queue(self.jobs, self.fleet, self.roles, self.runs, ordering)
        self.waiting = Ranked(self.queue)

    def _set_time(self, now_s: float) -> None:
        self.queue.now_s = now_s
        if isinstance(self.waiting, Ranked):
            self.waiting.refresh()

    def _arrive(self, arrivals: Sequence[int], now_s: float) -> None:
        self._set_time(now_s)
        super()._arrive(arrivals, now_s)

    def _next_end(self, before_s: float) -> tuple[float, int, Run] | None:
        event = super()._next_end(before_s)
        if event is not None:
            self._set_time(event[0])
        return event

    def _record_end(self, job: int, run_s: float, alone_s: float, now_s: float) -> None:
        before = self.queue.leave(job)
        super()._record_end(job, before.run_s + run_s, before.alone_s + alone_s, now_s)

    def _send_back(self, job: int, run: Run, now_s: float) -> int:
        self.queue.stop(job)
        return super()._send_back(job, run, now_s)

    def _start_job(self, job: int, role: int, gpus: Sequence[int], now_s: float) -> None:
        self.queue.start(job, self.gpus.type_of[gpus[0]])
        super()._start_job(job, role, gpus, now_s)

    def _launch_s(self, job: int) -> float | None:
        return self.queue.ordering.preemption_s if job in self.queue.suspended else None

    def _work_s(self, job: int) -> float:
        return self.queue.work_left_s(job)


class PreemptiveEngine(OrderedEngine):
    """State of a simulation in which running jobs are suspended for those that go first, in rounds."""

    pool: Pool
    rounds: Rounds

    def order_by(self, ordering: Ordering) -> None:
        """Let jobs go first as *ordering* has it, from the beginning."""
        super().order_by(ordering)
        self.waiting = self.pool = Pool(self.queue)
        self.rounds = Rounds(self.queue, self.runs, self.pool, self.gpus.type_of)

    def _next_end(self, before_s: float) -> tuple[float, int, Run] | None:
        while True:
            round_s = self.rounds.next_s
            event = super()._next_end(min(round_s, before_s))
            if event is not None or round_s >= before_s:  # jobs that come at the time of a round are part of it
                return event
            self._have_round(round_s)

    def _have_round(self, now_s: float) -> None:
        """Suspend jobs, and start others where their nodes have room."""
        self._set_time(now_s)
        selection = self.rounds.select()

        for job in selection.suspended:
            self._suspend(job, now_s)
        for job, gpu_type in selection.started:
            role = self.queue.jobs[job].role
            if gpus := self._allocate(role, gpu_type):
                self.pool.drop(job)
                self._start_job(job, role, gpus, now_s)

    def _suspend(self, job: int, now_s: float) -> None:
        run = self.runs.suspend(job, now_s)
        self.queue.suspend(job, run)
        self._expect(run.gpus)
        self.result.preemptions[job] += 1
        self.pool.add(run.role, job)

    def _start_where_possible(self, now_s: float) -> None:
        self.rounds.request(now_s)
