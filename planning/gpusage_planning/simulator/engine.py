"""The simulation itself: events in the order of their time, each of which moves jobs on or off GPUs.

Invariants, which tests/properties hold:

1. On no GPU are more jobs than the policy allows, and a job that wants to be alone is alone.
2. A job does exactly its work: time on GPUs times the speed there, no matter who comes and goes beside it.
3. Every job ends. The same jobs, fleet, policy and truth give the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

from gpusage_planning.simulator.contract import JobRequest, Jobs, Policy, Stage, Truth
from gpusage_planning.simulator.fleet import Fleet, earliest
from gpusage_planning.simulator.gpus import Gpus, Run, Runs, Way
from gpusage_planning.simulator.result import Result
from gpusage_planning.simulator.roles import Roles
from gpusage_planning.simulator.waiting import Passes, Scheduling, Waiting

OUT_OF_MEMORY_S = 30.0
"""From the start of a job that has too little memory to its end: it allocates most of it in its first steps."""
PROGRESS_REPORTS = 200
"""Times that the progress is reported."""


def simulate(
    jobs: Jobs,
    fleet: Fleet,
    policy: Policy,
    truth: Truth,
    progress: Callable[[int], None] | None = None,
    *,
    scheduling: Scheduling | None = None,
) -> Result:
    """Return the result of *jobs* on *fleet* if *policy* decides and *truth* is what happens.

    Args:
        jobs: At least one.
        fleet: The cluster's GPUs.
        policy: Sees what is predicted alone.
        truth: Speeds, memory and interference.
        progress: Called now and then with the number of ended jobs.
        scheduling: When jobs start, if not as soon as there is room; the policy's backfill then has no say.

    Raises:
        RequestError: A job fits nowhere.
    """
    engine = Engine(jobs, fleet, policy, truth, progress or (lambda _: None))
    if scheduling is not None:
        engine.passes = Passes(scheduling, fleet, engine.roles, engine.gpus, engine.waiting)
    return engine.run()


class Engine:
    """State of one simulation, in which the oldest job goes first, or whichever the policy's rank has.

    Attributes:
        waiting: `gpusage_planning.simulator.rounds` has others.
        oldest: The first job that waits and its role, if GPUs are held for it.
    """

    def __init__(self, jobs: Jobs, fleet: Fleet, policy: Policy, truth: Truth, progress: Callable[[int], None]) -> None:
        self.jobs, self.fleet, self.policy, self.progress = jobs, fleet, policy, progress
        self.roles = Roles(fleet, policy, truth)
        self.gpus = Gpus(fleet, self.roles, policy.most_per_gpu)
        self.runs = Runs(self.gpus, self.roles)
        self.waiting = Waiting()
        self.result = Result(policy.name, jobs)
        self.backfill = policy.backfill
        self.passes: Passes | None = None
        self.oldest: tuple[int, int] | None = None
        self.until_s = 0.0
        self.freed: list[int] = []
        self.missed: set[int] = set()
        self.ended = 0

    def run(self) -> Result:
        """Return the result once every job has ended."""
        self.gpus.begin(float(self.jobs.submit_s[0]))
        for now_s, arrivals in self.jobs.arrivals():
            self._end_until(now_s)
            self._arrive(arrivals, now_s)

        self._end_until(inf)
        self.progress(self.ended)
        self.gpus.end(float(self.result.end_s.max()))
        self.result.complete(self.fleet, self.gpus)
        return self.result

    def _arrive(self, arrivals: Sequence[int], now_s: float) -> None:
        kind, count, fresh = self.jobs.kind, self.jobs.gpu_count, set()
        for job in arrivals:
            # Where a job ran out of memory beside others, the next ones of its kind have a whole GPU from the start.
            stage: Stage = "rescued" if int(kind[job]) in self.missed else "first"
            ask = JobRequest(int(kind[job]), int(count[job]), stage)
            role = self.roles.number(self.policy.arriving(ask, self.gpus.free_count))
            if self.waiting.add(role, job):
                fresh.add(role)

        self._start_where_possible(fresh, now_s)

    def _end_until(self, before_s: float) -> None:
        while (event := self._next_end(before_s)) is not None:
            now_s, job, run = event
            if run.way == "start":
                self._begin(job, run.role, run.gpus, now_s)
                continue
            self._expect_empty(run.gpus)
            fresh = set() if run.way == "work" else {self._send_back(job, run, now_s)}
            if run.way == "work":
                self._finish(job, run, now_s)
            # With passes, jobs start when the manager looks at its queue; without, the free GPU is offered at once.
            if self.passes is None:
                self._refill(run.gpus, now_s)
            if fresh or self.passes is not None:
                self._start_where_possible(fresh, now_s)

    def _expect_empty(self, gpus: Iterable[int]) -> None:
        """Correct when GPUs are expected to be empty, of those that are."""
        for gpu in gpus:
            # Jobs that end before their limit leave a GPU that backfill still counts as busy.
            if not self.gpus.here[gpu]:
                self.gpus.empty_at_s[gpu] = 0.0

    def _next_end(self, before_s: float) -> tuple[float, int, Run] | None:
        if self.passes is None:
            return self.runs.next_end(before_s)
        return self.passes.next_end(self.runs, before_s, self._place)

    def _finish(self, job: int, run: Run, now_s: float) -> None:
        gpu_type = self.gpus.type_of[run.gpus[0]]
        alone_s = self._work_s(job) / self.roles.speed(run.role, gpu_type)
        self._record_end(job, now_s - run.started_s, alone_s, now_s)
        self.ended += 1
        if self.ended % max(len(self.jobs) // PROGRESS_REPORTS, 1) == 0:
            self.progress(self.ended)

    def _record_end(self, job: int, run_s: float, alone_s: float, now_s: float) -> None:
        self.result.end(job, run_s, alone_s, now_s)

    def _send_back(self, job: int, run: Run, now_s: float) -> int:
        """Let a job wait again that was profiled, or that ran out of memory; return its new role."""
        ask, demand = self.roles.asks[run.role], self.roles.demands[run.role]
        if run.way == "profile":
            ask = ask._replace(stage="profiled")
        else:
            self.result.out_of_memory[job] += 1
            if self.policy.remembers and not demand.alone:
                self.missed.add(ask.kind)
            # A job that had a whole GPU needs a larger one; a job that shared may have a whole one of any type.
            whole = self.fleet.types[self.gpus.type_of[run.gpus[0]]].memory_bytes
            ask = ask._replace(stage="rescued", above_bytes=whole if demand.alone else ask.above_bytes)

        role = self.roles.number(ask)
        if self.passes is None:
            self.waiting.add(role, job)
        else:
            self.passes.send_away(role, job, now_s)

        return role

    def _start_where_possible(self, fresh: set[int], now_s: float) -> None:
        """Start jobs of the roles *fresh*, of which none could be tried before."""
        if self.passes is not None:
            self.passes.in_order(now_s, self._place)
            return
        if self.backfill == "none":
            self._start_in_order(now_s)
            return

        # Jobs of one role are alike: if the first has no room, the others have none either.
        while fresh := {role for role in fresh if role in self.waiting}:
            role = min(fresh, key=self._queue_order)
            if not self._place(role, now_s):
                fresh.discard(role)

        self._reserve(now_s)
        if self.freed:
            self._refill((), now_s)

    def _queue_order(self, role: int) -> tuple[float, Any]:
        return self.roles.rank(role, self.roles.demands[role].types[0]), self.waiting.entry(role)

    def _start_in_order(self, now_s: float) -> None:
        while self.waiting:
            _, role = self.waiting.first()
            if not self._place(role, now_s):
                return

    def _place(self, role: int, now_s: float) -> bool:
        """Start the oldest job of *role* if there is room for it; return whether there was."""
        for gpu_type in self.roles.demands[role].types:
            if gpus := self._allocate(role, gpu_type):
                self._start(role, gpus, now_s)
                return True
        return self.roles.counts[role] == 1 and self._place_for_a_while(role, now_s)

    def _allocate(self, role: int, gpu_type: int) -> Sequence[int]:
        """Return the GPUs of a type on which a job of *role* is to start; none where there is no room."""
        if self.roles.counts[role] == 1:
            gpu = self.gpus.cheapest(gpu_type, role)
            return () if gpu is None else (gpu,)
        return self.gpus.allocate(gpu_type, role) if self.gpus.fits(gpu_type, role) else ()

    def _place_for_a_while(self, role: int, now_s: float) -> bool:
        """Start a job on a reserved GPU where it will be gone in time."""
        for gpu in self.gpus.reserved:
            here = self.gpus.here[gpu]
            if self.roles.cost(self.gpus.type_of[gpu], here, role) is not None and self._ends_in_time(role, gpu, now_s):
                self._start(role, (gpu,), now_s)
                return True
        return False

    def _refill(self, gpus: Iterable[int], now_s: float) -> None:
        """Let jobs that wait onto *gpus*, from which one has gone, and onto those that are held no more."""
        if self.backfill == "none":
            self._start_in_order(now_s)
            return

        todo = [*gpus, *self.freed]
        self.freed.clear()
        while todo and self.waiting:
            gpu = todo.pop()
            self._start_oldest(gpu, now_s)
            # One GPU may take several jobs, so it is offered until nobody fits.
            while (role := self._next_for(gpu, now_s)) is not None:
                is_single = self.roles.counts[role] == 1
                self._start(role, (gpu,) if is_single else self.gpus.allocate(self.gpus.type_of[gpu], role), now_s)
            self._reserve(now_s)
            todo += self.freed
            self.freed.clear()

    def _reserve(self, now_s: float) -> None:
        """Hold the GPUs that will be empty first for the oldest job that waits, so that nobody delays it for ever."""
        if self.oldest is not None or not self.waiting or self.backfill != "reserve":
            return

        self.oldest = self.waiting.first()
        role = self.oldest[1]
        types, count = self.roles.demands[role].types, self.roles.counts[role]
        # EASY backfill: GPUs are held for the oldest job alone, those that time limits say will be empty first.
        held, at_s = earliest(self.gpus.empty_at_s, self.fleet, types, count)
        self.until_s = max(at_s, now_s)
        self.gpus.reserve(held)

    def _start_oldest(self, gpu: int, now_s: float) -> None:
        """Start the job for which GPUs are held, once they and others that are free are enough."""
        if self.oldest is None:
            return

        role, gpus = self.oldest[1], self.gpus
        gpu_type, count = gpus.type_of[gpu], self.roles.asks[role].gpu_count
        if count == 1:
            if gpu in gpus.reserved and self.roles.cost(gpu_type, gpus.here[gpu], role) is not None:
                self._start(role, (gpu,), now_s)
            return
        if allocated := gpus.allocate_reserved(gpu_type):
            self._start(role, allocated, now_s)

    def _next_for(self, gpu: int, now_s: float) -> int | None:
        """Return the role whose turn it is on *gpu*, of those that fit there."""
        roles, gpu_type, here = self.roles, self.gpus.type_of[gpu], self.gpus.here[gpu]
        if roles.is_closed(here):
            return None

        is_held = gpu in self.gpus.reserved
        costs, counts, rank = roles.costs(gpu_type, here), roles.counts, roles.rank
        best: tuple[float, Any, int] | None = None
        for role, entry in self.waiting.heads():
            # Not `Roles.cost`: this runs for each kind that waits, at each end of a job.
            cost = costs[role] if role in costs else roles.ask_cost(gpu_type, here, role)
            if cost is None or (counts[role] > 1 and (is_held or not self.gpus.fits(gpu_type, role))):
                continue
            turn = (rank(role, gpu_type), entry, role)
            if (best is None or turn < best) and self._may_stand(role, gpu, now_s):
                best = turn

        return None if best is None else best[2]

    def _may_stand(self, role: int, gpu: int, now_s: float) -> bool:
        """Return whether *gpu* is not held for another, or the oldest job of *role* is gone from it in time."""
        return gpu not in self.gpus.reserved or self._ends_in_time(role, gpu, now_s)

    def _ends_in_time(self, role: int, gpu: int, now_s: float) -> bool:
        """Return whether the oldest job of *role* is gone from *gpu* when that is needed."""
        until_s = self.until_s if self.passes is None else self.passes.until_s
        return now_s + self._expected_s(self.waiting.head(role), role, gpu) <= until_s

    def _expected_s(self, job: int, role: int, gpu: int) -> float:
        """Return how long *job* would stay on *gpu*, by its time limit."""
        speed = self.roles.speed(role, self.gpus.type_of[gpu])
        return self.roles.demands[role].profiling_s or float(self.jobs.limit_s[job]) / speed

    def _start(self, role: int, gpus: Sequence[int], now_s: float) -> None:
        """Start the oldest job of *role* on *gpus*."""
        self._start_job(self.waiting.pop(role), role, gpus, now_s)

    def _start_job(self, job: int, role: int, gpus: Sequence[int], now_s: float) -> None:
        """Start *job*, which waits no more."""
        first = gpus[0]
        expected_at_s = now_s + self._expected_s(job, role, first)
        self.result.start(job, first, self.roles.demands[role], now_s)
        launch_s = self._launch_s(job)
        if launch_s is None:
            self._begin(job, role, gpus, now_s)
        else:
            self.runs.begin(job, Run(role, gpus, "start", launch_s, now_s), now_s)

        for gpu in gpus:
            self.gpus.empty_at_s[gpu] = max(self.gpus.empty_at_s[gpu], expected_at_s)
        if self.oldest is not None and self.oldest[0] == job:
            self._release()

    def _release(self) -> None:
        """Hold GPUs for nobody; those that were held are offered to all that wait."""
        self.freed += sorted(self.gpus.reserved)
        self.gpus.release()
        self.oldest = None

    def _launch_s(self, _: int) -> float | None:
        """Return for how long a job has its GPUs before its work begins; ``None`` where it begins at once."""
        return None if self.passes is None else self.passes.scheduling.start_s

    def _work_s(self, job: int) -> float:
        """Return the work that a job has left when it starts."""
        return float(self.jobs.work_s[job])

    def _begin(self, job: int, role: int, gpus: Sequence[int], now_s: float) -> None:
        """Let *job* begin whatever it does on its GPUs."""
        # Sorted, so that equal sets of jobs share one cached scene.
        here = tuple(sorted((*self.gpus.here[gpus[0]], role)))
        way, left_s = self._first_phase(job, role, self.gpus.type_of[gpus[0]], here)
        self.runs.begin(job, Run(role, gpus, way, left_s, now_s), now_s)

    def _first_phase(self, job: int, role: int, gpu_type: int, here: tuple[int, ...]) -> tuple[Way, float]:
        demand = self.roles.demands[role]
        if self.roles.runs_out(gpu_type, here, role):
            return "out_of_memory", OUT_OF_MEMORY_S
        return ("profile", demand.profiling_s) if demand.profiling_s > 0 else ("work", self._work_s(job))
