"""Which job goes first: the built-in orders, and the state of the queue that they look at."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log

import numpy as np

from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_planning.simulator.contract import Backfill, FloatArray, IntArray, Jobs, QueuedJob
from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.simulator.gpus import Run, Runs
from gpusage_planning.simulator.roles import Roles

LOW_QUEUE_S = 18_000.0
"""GPU time from which a job is in the second queue, as in Lucid's simulation/policy/tiresias.py."""
LAS_ROUND_S = 60.0
"""The same file's, which has it from Pollux."""
DAY_S = 86400.0


PREEMPTION_S = 62.0
"""From a suspended job's next start to its work: Tiresias' mean (13,724 s for 221 preemptions, section 5.2.4), as
Lucid's simulator quotes it (simulation/policy/policy.py); Lucid itself counts 40 s, and 60 s above 8 GPUs."""
HALF_LIFE_S = 14 * 86400.0
"""Of a user's usage: PriorityDecayHalfLife in the example of Slurm's page on its multifactor plugin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Decides which job goes first; a policy decides where it goes.

    Attributes:
        backfill: Who may overtake, where it suspends nobody.
        preempts: Whether a running job is suspended for one that goes first.
        period_s: From one ranking to the next. With 0, jobs are ranked each time that one comes or ends. Where nobody
            is suspended, infinity means that a job is ranked when it comes, and never again. Where jobs are suspended,
            they start and stop at multiples of it.
        is_steady: Whether a job keeps its rank as long as it waits; then `next_change_s` says when one that runs falls.
    """

    name: str
    backfill: Backfill = "none"
    preempts: bool = False
    period_s: float = inf
    is_steady: bool = False

    def rank(self, job: QueuedJob, now_s: float, queue: Queue, /) -> float:
        """Return the place in the queue, the least first; the older job among equals."""
        return 0.0

    def ranks(self, numbers: IntArray, now_s: float, queue: Queue, /) -> FloatArray:
        """Return the places of many jobs."""
        return np.array([self.rank(queue.jobs[number], now_s, queue) for number in numbers.tolist()])

    def next_change_s(self, job: QueuedJob, now_s: float, queue: Queue, /) -> float:
        """Return when *job*, if it runs from now on, falls behind in the queue; infinite where it never does."""
        return inf


class ByAge(Order):
    """The oldest job first: FIFO where nobody overtakes, EASY where younger jobs do that do not delay the oldest.

    Source:
        Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995 (EASY backfill).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestJob(Order):
    """The job with the shortest predicted run time first; nobody overtakes it, as in Lucid's simulator."""

    name: str = "sjf"

    def rank(self, job: QueuedJob, _: float, __: Queue, /) -> float:
        """Return the predicted run time."""
        return job.predicted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestRemainingTime(Order):
    """The job with the least left of its predicted run time first, also before those that run."""

    name: str = "srtf"
    preempts: bool = True
    period_s: float = 0.0
    is_steady: bool = True  # a job that runs only comes closer to its end

    def rank(self, job: QueuedJob, _: float, queue: Queue, /) -> float:
        """Return what is left."""
        return queue.left_s(job)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastAttainedService(Order):
    """Tiresias' two queues: jobs that have had little GPU time before all others, the older job first in each queue.

    Source:
        Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019, section 3.3.
    """

    name: str = "las"
    preempts: bool = True
    period_s: float = LAS_ROUND_S
    is_steady: bool = True

    def rank(self, job: QueuedJob, _: float, queue: Queue, /) -> float:
        """Return the queue."""
        return float(queue.service_s(job) > LOW_QUEUE_S)

    def next_change_s(self, job: QueuedJob, now_s: float, queue: Queue, /) -> float:
        """Return when the job is in the second queue."""
        rest_s = LOW_QUEUE_S - queue.service_s(job)
        return now_s + rest_s / job.gpus if rest_s >= 0 else inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Multifactor(Order):
    """Slurm's priority/multifactor with its factors of age, fair share (classic) and job size.

    A trace has no partitions, qualities of service, associations and nice values, so these factors are left out. Each
    user has one share. The size is that of the GPUs, and the larger job goes first.

    Attributes:
        age, fair_share, size: Weights: PriorityWeightAge, PriorityWeightFairshare and PriorityWeightJobSize.
        longest_age_s: PriorityMaxAge, from which on a job's age counts no more.
        period_s: PriorityCalcPeriod; the value is Slurm's default.

    Source:
        https://slurm.schedmd.com/priority_multifactor.html, its configuration example and the classic fair share.
    """

    name: str = "multifactor"
    backfill: Backfill = "reserve"
    period_s: float = 300.0
    age: float = 1000.0
    fair_share: float = 10_000.0
    size: float = 1000.0
    longest_age_s: float = 14 * DAY_S

    def rank(self, job: QueuedJob, now_s: float, queue: Queue, /) -> float:
        """Return the priority, negative."""
        age = min((now_s - job.submit_s) / self.longest_age_s, 1.0)
        fair_share: float = 0.5 ** (queue.usage_share(job.user) * queue.user_count)
        size = job.gpus / queue.fleet.gpu_count
        return -(self.age * age + self.fair_share * fair_share + self.size * size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """Which jobs go first, and what that rests on.

    Attributes:
        predicted_s: Of each job, how long it is predicted to run alone.
        preemption_s: GPU time, for each of its GPUs, that a suspended job's next start takes before its work goes on.
    """

    order: Order
    predicted_s: FloatArray
    preemption_s: float = PREEMPTION_S


@dataclass(slots=True)
class Suspended:
    """What a suspended job did before.

    Attributes:
        left_s: Work that it has left.
        run_s: Time that it worked.
        alone_s: What that work takes alone on whole GPUs.
    """

    left_s: float
    run_s: float = 0.0
    alone_s: float = 0.0


class Queue:
    """All jobs that wait or run.

    Attributes:
        now_s: The moment of which the answers are.
        users, gpus: Of all jobs of the trace, by number; GPUs of jobs that have not come yet are 0.
        suspended: What jobs did that were suspended once, by number.
    """

    def __init__(self, trace: Jobs, fleet: Fleet, roles: Roles, runs: Runs, ordering: Ordering) -> None:
        self.now_s = float(trace.submit_s[0])
        self.fleet, self.ordering = fleet, ordering
        self.jobs: dict[int, QueuedJob] = {}
        self.suspended: dict[int, Suspended] = {}
        self.user_count = len(trace.users)
        count = len(trace)
        self.users, self.gpus = trace.user, np.zeros(count)
        self._trace, self._roles, self._runs = trace, roles, runs
        self._run_s = np.zeros(count)
        self._since_s, self._type = np.full(count, inf), np.zeros(count, dtype=np.int32)
        self._usage = [_Usage() for _ in trace.users]
        self._total: tuple[float, float] = (-1.0, 0.0)

    def enter(self, number: int, role: int) -> QueuedJob:
        """Let a job wait, as one of *role*."""
        demand, ask, trace = self._roles.demands[role], self._roles.asks[role], self._trace
        job = self.jobs[number] = QueuedJob(
            number=number,
            role=role,
            user=int(trace.user[number]),
            gpus=ask.gpu_count * demand.share_percent / WHOLE_PERCENT,
            types=demand.types,
            submit_s=float(trace.submit_s[number]),
            predicted_s=float(self.ordering.predicted_s[number]),
        )
        self.gpus[number] = job.gpus
        return job

    def start(self, number: int, gpu_type: int) -> None:
        """Let a job have GPUs of the type."""
        job = self.jobs[number]
        self._since_s[number], self._type[number] = self.now_s, gpu_type
        self._usage[job.user].change(job.gpus, self.now_s)

    def stop(self, number: int) -> None:
        """Let a job have no GPUs."""
        job = self.jobs[number]
        self._run_s[number] += self.now_s - self._since_s[number]
        self._since_s[number] = inf
        self._usage[job.user].change(-job.gpus, self.now_s)

    def suspend(self, number: int, run: Run) -> None:
        """Write down what *run* did, which is over before its work is done."""
        # A suspended job loses no work, as in the schedulers that these orders are from.
        before = self.suspended.setdefault(number, Suspended(left_s=self._work_s(number)))
        if run.way == "work":
            gpu_type = int(self._type[number])
            before.run_s += self.now_s - run.started_s
            before.alone_s += (before.left_s - run.left_s) / self._roles.speed(run.role, gpu_type)
            before.left_s = run.left_s
        self.stop(number)

    def leave(self, number: int) -> Suspended:
        """Let a job be gone that ran to its end; return what it did before its last start."""
        self.stop(number)
        del self.jobs[number]
        return self.suspended.pop(number, Suspended(left_s=self._work_s(number)))

    def work_left_s(self, number: int) -> float:
        """Return the work that a job has left which waits."""
        before = self.suspended.get(number)
        return self._work_s(number) if before is None else before.left_s

    def left_s(self, job: QueuedJob) -> float:
        """Return the rest of its predicted run time, and the time that its next start costs if it was suspended."""
        left_s, restart_s = self.work_left_s(job.number), 0.0
        if self._since_s[job.number] == inf:
            restart_s = self.ordering.preemption_s if job.number in self.suspended else 0.0
        else:
            way, rest_s = self._runs.left(job.number, self.now_s)
            left_s, restart_s = (rest_s, 0.0) if way == "work" else (left_s, rest_s)

        done_s = self._work_s(job.number) - left_s
        return max(job.predicted_s - done_s, 0.0) + restart_s

    def service_s(self, job: QueuedJob) -> float:
        """Return its attained service: seconds times the GPUs that it held."""
        return job.gpus * float(self._run_s[job.number] + max(self.now_s - self._since_s[job.number], 0.0))

    def run_times_s(self, numbers: IntArray) -> FloatArray:
        """Return for how long each job has been on GPUs."""
        times: FloatArray = self._run_s[numbers] + np.maximum(self.now_s - self._since_s[numbers], 0.0)
        return times

    def usage_share(self, user: int) -> float:
        """Return the user's part of the GPU time that all users had, where older time counts less."""
        if self._total[0] != self.now_s:
            self._total = self.now_s, sum(one.at(self.now_s) for one in self._usage)
        return self._usage[user].at(self.now_s) / self._total[1] if self._total[1] > 0 else 0.0

    def _work_s(self, number: int) -> float:
        return float(self._trace.work_s[number])


class _Usage:
    """GPU time of one user, of which half is forgotten in each half-life."""

    __slots__ = ("_gpus", "_since_s", "_usage_s")

    def __init__(self) -> None:
        self._usage_s = self._gpus = self._since_s = 0.0

    def at(self, now_s: float) -> float:
        """Return it at *now_s*: what was there decays, and what the GPUs add since then decays as it comes."""
        rest: float = 0.5 ** ((now_s - self._since_s) / HALF_LIFE_S)
        # The second part is the integral of what the GPUs add, each second of it decayed since.
        return self._usage_s * rest + self._gpus * (1 - rest) * HALF_LIFE_S / log(2)

    def change(self, gpus: float, now_s: float) -> None:
        """Let the user hold so many GPUs more from now on."""
        self._usage_s, self._since_s = self.at(now_s), now_s
        self._gpus += gpus
