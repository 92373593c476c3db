"""The simulation itself: events in the order of their time, each of which moves jobs on or off GPUs.

Invariants, which tests/properties hold:

1. On no GPU are more jobs than the policy allows, and a job that wants to be alone is alone.
2. A job does exactly its work: time on GPUs times the speed there, no matter who comes and goes beside it.
3. Every job ends. The same jobs, fleet, policy and truth give the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from gpusage_planning.simulator.contract import Arrival, FloatArray, JobRequest, Jobs, Policy, Stage, Truth
from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.simulator.gpus import Gpus, Run, Runs, Way
from gpusage_planning.simulator.reservation import Reservation, reserve, start_s
from gpusage_planning.simulator.result import Result
from gpusage_planning.simulator.roles import Roles
from gpusage_planning.simulator.waiting import Entry, Passes, Scheduling, Waiting

OUT_OF_MEMORY_S = 30.0
"""From the start of a job that has too little memory to its end: it allocates most of it in its first steps."""
STUCK_AFTER_S = 60.0
"""Settings' daemon.stuck_after_s: the wait after which gpusaged looks whether a share can start."""
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
        reservation: Of the first job that waits; ``None`` where none is looked after.
        changed: GPUs on which there may be room for jobs that had none at the last look.
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
        self.reservation: Reservation | None = None
        self.changed: set[int] = set()
        self.fresh: set[int] = set()
        self.first = -1
        self.limits_s: list[float] = jobs.limit_s.tolist()
        self.due_s = [0.0] * len(jobs)
        self.rooms: dict[int, tuple[FloatArray, set[int]]] = {}
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
        kind, count = self.jobs.kind, self.jobs.gpu_count
        for job in arrivals:
            # Where a job ran out of memory beside others, the next ones of its kind have a whole GPU from the start.
            stage: Stage = "rescued" if int(kind[job]) in self.missed else "first"
            ask = JobRequest(int(kind[job]), int(count[job]), stage)
            seen = Arrival(int(self.jobs.user[job]), self.gpus.free_count, self._open_sets)
            role = self.roles.number(self.policy.arriving(ask, seen))
            self.waiting.add(role, job)
            self.fresh.add(role)

        self._start_where_possible(now_s)

    def _open_sets(self, gpu_type: int) -> list[list[JobRequest]]:
        return [[self.roles.asks[role] for role in here] for here in self.gpus.open_sets(gpu_type)]

    def _end_until(self, before_s: float) -> None:
        while (event := self._next_end(before_s)) is not None:
            now_s, job, run = event
            if run.way == "start":
                self._begin(job, run.role, run.gpus, now_s)
                continue
            self._expect(run.gpus)
            self.changed.update(run.gpus)
            if run.way == "work":
                self._finish(job, run, now_s)
            else:
                self.fresh.add(self._send_back(job, run, now_s))
            # Of jobs that end at one moment, all are gone before the next ones start.
            if not self.runs.has_end_at(now_s):
                self._start_where_possible(now_s)

    def _expect(self, gpus: Iterable[int]) -> None:
        """Work out when GPUs are expected to be empty, after somebody came or went."""
        for gpu in gpus:
            # By time limits: jobs that end before theirs leave a GPU that backfill counted as busy.
            self.gpus.empty_at_s[gpu] = max((self.due_s[job] for job in self.gpus.jobs[gpu]), default=0.0)
            for _, stale in self.rooms.values():
                stale.add(gpu)

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

    def _start_where_possible(self, now_s: float) -> None:
        """Start jobs as the manager's queue has it: the first ones first, then others that do not delay the next."""
        if self.passes is not None:
            self.passes.in_order(now_s, self._place)
            return

        self._release()
        while self.backfill != "any" and self.waiting:
            role = self.waiting.first()[1]
            # Without backfill, nobody has tried it before.
            if not ((self.backfill == "none" or self._may_fit(role)) and self._place(role, now_s)):
                break
        if self.backfill != "none" and self.waiting:
            self._backfill(now_s)
        self.fresh.clear()
        self.changed = {*self.gpus.reserved}
        if self._release_share(now_s):
            self._start_where_possible(now_s)

    def _release_share(self, now_s: float) -> bool:
        """Let a job that waits for a share wait for a whole GPU where one is free; return whether there is one."""
        if not any(self.gpus.free_count):
            return False
        for role, entry in sorted(self.waiting.heads(), key=lambda head: head[1]):
            ask = self.policy.released(self.roles.asks[role])
            if ask is None or now_s - self.jobs.submit_s[entry[1]] < STUCK_AFTER_S:
                continue
            whole = self.roles.number(ask)
            if any(self.gpus.fits(one, whole) for one in self.roles.demands[whole].types):
                self.waiting.remove(role, entry)
                self.waiting.add(whole, entry[1])
                self.fresh.add(whole)
                return True
        return False

    def _may_fit(self, role: int, gpu_type: int | None = None) -> bool:
        """Return whether *role* may have room now, where it had none when it was tried last."""
        types = self.roles.demands[role].types if gpu_type is None else (gpu_type,)
        if self.roles.counts[role] > 1:
            return any(self.gpus.fits(one, role) for one in types)
        if role in self.fresh:
            return True
        type_of, here, cost = self.gpus.type_of, self.gpus.here, self.roles.cost
        return any(type_of[gpu] in types and cost(type_of[gpu], here[gpu], role) is not None for gpu in self.changed)

    def _backfill(self, now_s: float) -> None:
        """Backfill: start jobs, in their order, of which none delays the first one."""
        roles, waiting = self.roles, self.waiting
        first = None if self.backfill == "any" else waiting.first()[1]
        turns = [
            (roles.rank(role, gpu_type), entry, place, role)
            for role, entry in waiting.heads()
            if role != first
            for place, gpu_type in enumerate(roles.demands[role].types)
            if self._may_fit(role, gpu_type)
        ]
        if turns or any(self.gpus.free_count):
            self._reserve(first, now_s)

        # Of jobs of one role that may stay, the second has no room where the first has none; but it may be shorter.
        only_short: set[tuple[int, int]] = set()
        heapify(turns)
        while turns:
            rank, entry, place, role = heappop(turns)
            gpu_type = roles.demands[role].types[place]
            within_s = self._within_s(role, gpu_type, now_s)
            if waiting.contains(role, entry):
                is_short = self.limits_s[entry[1]] <= within_s
                if self._backfill_job(role, entry, gpu_type, now_s, is_short=is_short):
                    self._reserve(first, now_s)
                    within_s = self._within_s(role, gpu_type, now_s)
                elif is_short or within_s <= 0:
                    continue
                else:
                    only_short.add((role, place))
            limit_s = within_s if (role, place) in only_short else inf
            if (following := waiting.first_within(role, limit_s, self.limits_s)) is not None:
                heappush(turns, (rank, following, place, role))

    def _reserve(self, first: int | None, now_s: float) -> None:
        """Keep what the first job that waits needs, by its role; nothing where there is none."""
        self._release()
        if first is not None:
            demand, room_at_s = self.roles.demands[first], self._room_at_s(first)
            held = reserve(room_at_s, self.fleet, demand.types, self.roles.counts[first], now_s)
            self.reservation, self.first = held, first
            self.gpus.reserve(held.gpus)

    def _release(self) -> None:
        self.reservation = None
        self.gpus.release()

    def _within_s(self, role: int, gpu_type: int, now_s: float) -> float:
        """Return the longest time limit with which a job of *role* may use GPUs of a type that are held; 0 for none."""
        held = self.reservation
        if held is None or held.gpu_type != gpu_type:
            return 0.0
        if profiling_s := self.roles.demands[role].profiling_s:
            return inf if profiling_s <= held.until_s - now_s else 0.0
        return (held.until_s - now_s) * self.roles.speed(role, gpu_type)

    def _backfill_job(self, role: int, entry: Entry, gpu_type: int, now_s: float, *, is_short: bool) -> bool:
        """Start a job on GPUs of a type unless that delays the first job; return whether it did."""
        held, gpus = self.reservation, self.gpus
        if is_short:
            gpus.release()
        allocated = self._allocate(role, gpu_type)
        if held is not None and held.gpu_type == gpu_type and not is_short:
            # A job on several nodes may take more than the first one can spare, though on each node it does not.
            if len(allocated) > self.fleet.types[gpu_type].node_gpu_count:
                room_at_s = self._room_at_s(self.first).copy()
                room_at_s[[*allocated]] = inf
                if start_s(room_at_s, self.fleet, gpu_type, self.roles.counts[self.first]) > held.until_s:
                    gpus.give_back(allocated)
                    allocated = ()
            allocated = allocated or self._shared_gpu(role, gpu_type, held)

        if allocated:
            self.waiting.remove(role, entry)
            self._start_job(entry[1], role, allocated, now_s)
        elif is_short and held is not None:
            gpus.reserve(held.gpus)
        return bool(allocated)

    def _shared_gpu(self, role: int, gpu_type: int, held: Reservation) -> Sequence[int]:
        """Return a GPU that is held on which the first job has room beside a job of *role*; none where it has not."""
        here, cost = self.gpus.here, self.roles.cost
        for gpu in held.gpus:
            if self.roles.counts[role] > 1 or cost(gpu_type, here[gpu], role) is None:
                continue
            stay = [self.runs.role(job) for job in self.gpus.jobs[gpu] if self.due_s[job] > held.until_s]
            if cost(gpu_type, tuple(sorted((*stay, role))), self.first) is not None:
                return (gpu,)
        return ()

    def _place(self, role: int, now_s: float) -> bool:
        """Start the oldest job of *role* if there is room for it; return whether there was."""
        for gpu_type in self.roles.demands[role].types:
            if gpus := self._allocate(role, gpu_type):
                self._start(role, gpus, now_s)
                return True
        return self.passes is not None and self.roles.counts[role] == 1 and self._place_for_a_while(role, now_s)

    def _allocate(self, role: int, gpu_type: int) -> Sequence[int]:
        """Return the GPUs of a type on which a job of *role* is to start; none where there is no room."""
        if self.roles.counts[role] == 1:
            gpu = self.gpus.cheapest(gpu_type, role)
            return () if gpu is None else (gpu,)
        return self.gpus.allocate(gpu_type, role) if self.gpus.fits(gpu_type, role) else ()

    def _place_for_a_while(self, role: int, now_s: float) -> bool:
        """Start a job on a GPU that a pass holds, where it will be gone in time."""
        for gpu in self.gpus.reserved:
            gpu_type, expected_s = self.gpus.type_of[gpu], self._expected_s(self.waiting.head(role), role, gpu)
            has_room = self.roles.cost(gpu_type, self.gpus.here[gpu], role) is not None
            if has_room and self.passes is not None and now_s + expected_s <= self.passes.until_s:
                self._start(role, (gpu,), now_s)
                return True
        return False

    def _room_at_s(self, role: int) -> FloatArray:
        """Return when each GPU is expected to have room for a job of *role*, by time limits."""
        if self.roles.demands[role].alone or self.roles.counts[role] > 1:
            return self.gpus.empty_at_s

        if role not in self.rooms:
            self.rooms[role] = np.zeros(self.fleet.gpu_count), {*range(self.fleet.gpu_count)}
        room_at_s, stale = self.rooms[role]
        for gpu in stale:
            gpu_type, here, at_s = self.gpus.type_of[gpu], self.gpus.here[gpu], 0.0
            for due_s, gone in sorted((self.due_s[job], self.runs.role(job)) for job in self.gpus.jobs[gpu]):
                if self.roles.cost(gpu_type, here, role) is not None:
                    break
                at_s, place = due_s, here.index(gone)
                here = here[:place] + here[place + 1 :]
            room_at_s[gpu] = at_s
        stale.clear()
        return room_at_s

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
        self.due_s[job] = now_s + self._expected_s(job, role, first)
        self.result.start(job, first, self.roles.demands[role], now_s)
        launch_s = self._launch_s(job)
        if launch_s is None:
            self._begin(job, role, gpus, now_s)
        else:
            self.runs.begin(job, Run(role, gpus, "start", launch_s, now_s), now_s)

        self._expect(gpus)

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
