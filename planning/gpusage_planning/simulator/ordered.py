"""The simulation where an order decides which job goes first, and not its age.

A policy's own rank (`packing` starts the busiest job first) and its backfill do not count then. Of jobs of one role,
the first is tried, as without an order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpusage_planning.simulator.contract import Policy, Truth
from gpusage_planning.simulator.engine import Engine
from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.simulator.jobs import Jobs
from gpusage_planning.simulator.queue_state import Ordering, Queue
from gpusage_planning.simulator.result import Result
from gpusage_planning.simulator.rounds import Rounds
from gpusage_planning.simulator.runs import Run
from gpusage_planning.simulator.waiting import Pool, Ranked


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
        self.name = f"{self.policy.name}+{ordering.order.name}"
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

    def _reserve(self, now_s: float) -> None:
        if self.oldest is not None and self.oldest != self.waiting.first():
            self._release()
        super()._reserve(now_s)

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
                self.pool.remove(job)
                self._start_job(job, role, gpus, now_s)

    def _suspend(self, job: int, now_s: float) -> None:
        run = self.runs.suspend(job, now_s)
        self.queue.suspend(job, run)
        self._expect_empty(run.gpus)
        self.record.preemptions[job] += 1
        self.pool.add(run.role, job)

    def _start_where_possible(self, _: set[int], now_s: float) -> None:
        self.rounds.request(now_s)

    def _refill(self, _: Iterable[int], now_s: float) -> None:
        self.rounds.request(now_s)
