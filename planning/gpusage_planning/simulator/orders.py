"""The built-in orders: which job goes first, and whether one that runs is suspended for it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from gpusage_planning.simulator.contract import Backfill, QueuedJob, QueueState

LOW_QUEUE_S = 18_000.0
"""GPU time from which a job is in the second queue, as in Lucid's simulation/policy/tiresias.py."""
LAS_ROUND_S = 60.0
"""The same file's, which has it from Pollux."""
DAY_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ByAge:
    """The oldest job first: FIFO where nobody overtakes, EASY where younger jobs do that do not delay the oldest.

    Source:
        Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995 (EASY backfill).
    """

    name: str
    backfill: Backfill
    preempts: bool = False
    period_s: float = inf

    def rank(self, _: QueuedJob, __: float, ___: QueueState, /) -> float:
        """Return the same for all: the older job is first."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestJob:
    """The job with the shortest predicted run time first; nobody overtakes it, as in Lucid's simulator."""

    name: str = "sjf"
    backfill: Backfill = "none"
    preempts: bool = False
    period_s: float = inf

    def rank(self, job: QueuedJob, _: float, __: QueueState, /) -> float:
        """Return the predicted run time."""
        return job.predicted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestRemainingTime:
    """The job with the least left of its predicted run time first, also before those that run."""

    name: str = "srtf"
    backfill: Backfill = "none"
    preempts: bool = True
    period_s: float = 0.0

    def rank(self, job: QueuedJob, _: float, state: QueueState, /) -> float:
        """Return what is left."""
        return state.left_s(job)

    def next_change_s(self, _: QueuedJob, __: float, ___: QueueState, /) -> float:
        """Return that a job that runs only comes closer to its end."""
        return inf


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastAttainedService:
    """Tiresias' two queues: jobs that have had little GPU time before all others, the older job first in each queue.

    Source:
        Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019, section 3.3.
    """

    name: str = "las"
    backfill: Backfill = "none"
    preempts: bool = True
    period_s: float = LAS_ROUND_S

    def rank(self, job: QueuedJob, _: float, state: QueueState, /) -> float:
        """Return the queue."""
        return float(state.service_s(job) > LOW_QUEUE_S)

    def next_change_s(self, job: QueuedJob, now_s: float, state: QueueState, /) -> float:
        """Return when the job is in the second queue."""
        rest_s = LOW_QUEUE_S - state.service_s(job)
        return now_s + rest_s / job.gpus if rest_s >= 0 else inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Multifactor:
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
    preempts: bool = False
    period_s: float = 300.0
    age: float = 1000.0
    fair_share: float = 10_000.0
    size: float = 1000.0
    longest_age_s: float = 14 * DAY_S

    def rank(self, job: QueuedJob, now_s: float, state: QueueState, /) -> float:
        """Return the priority, negative."""
        age = min((now_s - job.submit_s) / self.longest_age_s, 1.0)
        fair_share: float = 0.5 ** (state.usage_share(job.user) * state.user_count)
        size = job.gpus / state.fleet.gpu_count
        return -(self.age * age + self.fair_share * fair_share + self.size * size)
