"""Gavel's packing policies in our engine: which jobs are alone on a GPU in the next round, and which two share one.

They know the throughputs of all pairs and move jobs at no cost, as no cluster can. So they stand here, beside Gavel's
own simulator, and `gpusage simulate` does not have them. Each job has one GPU, and all GPUs are of one type.

Source:
    Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads", OSDI 2020; in its
    repository, scheduler/policies/{fifo,max_min_fairness}.py, and in scheduler/scheduler.py how rounds keep parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import floor, inf
from random import Random

import numpy as np
from scipy.optimize import linprog  # type: ignore[import-untyped, unused-ignore]

from gpusage_planning.simulator.contract import Backfill, Colocation, Demand, JobRequest, Tenant
from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.simulator.jobs import FloatArray, IntArray, Jobs
from gpusage_planning.simulator.ordered import PreemptiveEngine
from gpusage_planning.simulator.orders import ByAge
from gpusage_planning.simulator.queue_state import Ordering
from gpusage_planning.simulator.result import Result

Combination = tuple[int, ...]
"""The numbers of one job that is alone on a GPU, or of two that share one, the older one first."""
Choice = Callable[[float, list[int]], list[Combination]]
"""Returns what has a GPU in the round that begins now, given the time and all jobs, the oldest first."""
BoolArray = np.typing.NDArray[np.bool_]
Division = Callable[[list[Combination], BoolArray, FloatArray], FloatArray]
"""Returns the part of the time of each combination, given which jobs (rows) are in it, and their throughputs there."""
LEAST_GAIN = 1.5
"""What two jobs' throughputs relative to alone must exceed together; Gavel's packing_threshold."""


@dataclass(frozen=True, slots=True, eq=False)
class PairThroughputs:
    """The truth: throughput of each row's kind beside each column's, relative to alone; 0 where they cannot share."""

    pair_throughputs: FloatArray

    def speed(self, _: int, __: int, /) -> float:
        """Return the same for all."""
        return 1.0

    def memory_bytes(self, _: int, __: int, /) -> float:
        """Return nothing: which two cannot share is in the throughputs."""
        return 0.0

    def colocation_of(self, tenants: Sequence[Tenant], _: int, /) -> Colocation:
        """Return the speeds of one job or of two."""
        if len(tenants) == 1:
            return Colocation((1.0,), 1.0)
        one, other = (tenant.kind for tenant in tenants)
        return Colocation((float(self.pair_throughputs[one, other]), float(self.pair_throughputs[other, one])), 1.0)


@dataclass(frozen=True, slots=True)
class Anywhere:
    """The policy that lets two jobs stand on any GPU; a choice says which."""

    name: str = "packed"
    backfill: Backfill = "none"
    most_per_gpu: int = 2
    remembers: bool = False

    def demand(self, _: JobRequest, /) -> Demand:
        """Return a GPU that another job may use as well."""
        return Demand(types=(0,), alone=False)

    def rank(self, _: JobRequest, __: int, /) -> float:
        """Return the same for all."""
        return 0.0

    def cost(self, _: int, __: Sequence[JobRequest], ___: JobRequest, /) -> float | None:
        """Return the same for all."""
        return 0.0


class FirstCome:
    """Gavel's fifo_packed: the oldest jobs have a GPU each; each next one joins the job with which it gains most.

    Where it gains too little with every job, nobody overtakes it. Pairs are made anew each time.
    """

    def __init__(self, gpu_count: int, kinds: IntArray, pair_throughputs: FloatArray) -> None:
        self._gpu_count, self._kinds, self._gains = gpu_count, kinds, pair_throughputs + pair_throughputs.T

    def __call__(self, _: float, jobs: list[int]) -> list[Combination]:
        """Return the jobs that are alone, and the pairs."""
        alone, pairs = jobs[: self._gpu_count], list[Combination]()
        for job in jobs[self._gpu_count :]:
            gains = self._gains[self._kinds[job], self._kinds[alone]]
            if not alone or gains.max() <= LEAST_GAIN:
                break
            pairs.append((alone.pop(int(gains.argmax())), job))
        return [*((job,) for job in alone), *pairs]


class InParts:
    """Gavel's other policies: parts of the time, divided anew when a job comes or goes, which rounds keep.

    A combination goes first whose part is largest over the time that it had since then; among equals, the one that
    lacks most of its earlier parts. What two jobs had with others does not count.
    """

    def __init__(
        self, gpu_count: int, kinds: IntArray, pair_throughputs: FloatArray, round_s: float, divide: Division
    ) -> None:
        self._gpu_count, self._kinds, self._pair_throughputs, self._divide = gpu_count, kinds, pair_throughputs, divide
        self._head_start_s = round_s / 2  # so that parts decide before anybody has run
        self._jobs: list[int] = []
        self._combinations: list[Combination] = []
        self._chosen: list[int] = []
        self._parts = self._run_s = self._lacks_s = np.zeros(0)
        self._can_run = np.zeros(0, dtype=bool)
        self._since_s = self._last_s = 0.0

    def __call__(self, now_s: float, jobs: list[int]) -> list[Combination]:
        """Return the combinations that go first, no job in two of them."""
        self._run_s[self._chosen] += now_s - self._last_s
        self._last_s, self._chosen = now_s, []
        if jobs != self._jobs:
            self._begin(now_s, jobs)
        busy: set[int] = set()
        for place in np.lexsort((-self._parts, -self._lacks_s, -self._parts / self._run_s)).tolist():
            if len(self._chosen) == self._gpu_count:
                break
            if self._can_run[place] and busy.isdisjoint(self._combinations[place]):
                self._chosen.append(place)
                busy.update(self._combinations[place])
        return [self._combinations[place] for place in self._chosen]

    def _begin(self, now_s: float, jobs: list[int]) -> None:
        """Write down what each combination lacks, and divide the time anew."""
        lacks_s = self._lacks_s + self._parts * (now_s - self._since_s) - (self._run_s - self._head_start_s)
        before = dict(zip(self._combinations, lacks_s.tolist(), strict=True))
        self._jobs, self._since_s = jobs, now_s
        self._combinations = [*((job,) for job in jobs), *combinations(jobs, 2)]
        self._lacks_s = np.array([before.get(one, 0.0) for one in self._combinations])
        self._run_s = np.full(len(self._combinations), self._head_start_s)
        is_in, speeds = speeds_of(self._kinds[jobs], self._pair_throughputs)
        self._can_run = can_run(is_in, speeds)
        self._parts = self._divide(self._combinations, is_in, speeds) if jobs else np.zeros(0)


class RandomPairs:
    """Gavel's gandiva: where jobs are more than GPUs, two and two that chance chose have a GPU for an equal time.

    Two stay together until one ends, or part at the next division if together they do less than one does alone.
    """

    def __init__(self, gpu_count: int, seed: int) -> None:
        self._gpu_count, self._random = gpu_count, Random(seed)
        self._pairs: set[Combination] = set()

    def __call__(self, candidates: list[Combination], is_in: BoolArray, speeds: FloatArray) -> FloatArray:
        """Return the part of the time of each combination."""
        jobs = [one[0] for one in candidates if len(one) == 1]
        gains = dict(zip(candidates, np.where(can_run(is_in, speeds), speeds.sum(axis=0), 0.0).tolist(), strict=True))
        self._pairs = {pair for pair in self._pairs if gains.get(pair, 0.0) >= 1.0}
        chosen: set[Combination] = {(job,) for job in jobs}
        if len(jobs) > self._gpu_count:
            paired = {job for pair in self._pairs for job in pair}
            single = [job for job in jobs if job not in paired]
            while len(single) > 1:
                pair = tuple(sorted(self._random.sample(single, 2)))
                self._pairs.add(pair)
                single = [job for job in single if job not in pair]
            chosen = self._pairs | {(job,) for job in single}
        part = min(self._gpu_count / len(chosen), 1.0)
        return np.array([part if one in chosen else 0.0 for one in candidates])


def can_run(is_in: BoolArray, speeds: FloatArray) -> BoolArray:
    """Return in which combinations nobody stands still."""
    runs: BoolArray = ((speeds > 0) == is_in).all(axis=0)
    return runs


def speeds_of(kinds: IntArray, pair_throughputs: FloatArray) -> tuple[BoolArray, FloatArray]:
    """Return which jobs (rows) are in which combinations (columns), and each one's throughput there.

    First come the jobs alone, then the pairs in the order of `itertools.combinations`.
    """
    first, second = np.triu_indices(len(kinds), 1)
    columns = np.arange(len(kinds), len(kinds) + len(first))
    speeds = np.hstack([np.eye(len(kinds)), np.zeros((len(kinds), len(first)))])
    is_in = speeds > 0
    is_in[first, columns] = is_in[second, columns] = True
    speeds[first, columns] = pair_throughputs[kinds[first], kinds[second]]
    speeds[second, columns] = pair_throughputs[kinds[second], kinds[first]]
    return is_in, speeds


def max_min(gpu_count: int) -> Division:
    """Return Gavel's max_min_fairness_packed: the parts for which the slowest job is as fast as it can be."""

    def divide(_: list[Combination], is_in: BoolArray, speeds: FloatArray) -> FloatArray:
        jobs, count = speeds.shape
        limits = np.block([
            [-speeds, np.ones((jobs, 1))],  # no job is slower than the last variable
            [is_in, np.zeros((jobs, 1))],
            [np.ones((1, count)), np.zeros((1, 1))],
        ])  # fmt: skip
        room = np.concatenate([np.zeros(jobs), np.ones(jobs), [gpu_count]])
        outcome = linprog(np.append(np.zeros(count), -1.0), A_ub=limits, b_ub=room, method="highs")
        parts: FloatArray = outcome.x[:-1].clip(0.0, 1.0)
        return parts

    return divide


class PackingEngine(PreemptiveEngine):
    """State of a simulation in which a choice says who stands on the GPUs in each round."""

    choice: Choice

    def _have_round(self, now_s: float) -> None:
        """Suspend the jobs whose combination ends, and start the new ones on the GPUs that are free."""
        self._set_time(now_s)
        jobs, period_s = sorted(self.queue.jobs), self.queue.ordering.order.period_s
        missing = set(self.choice(now_s, jobs))
        for here in [tuple(sorted(one)) for one in self.gpus.jobs]:
            if here in missing:
                missing.remove(here)
                continue
            for job in here:
                self._suspend(job, now_s)
        free = [gpu for gpu, here in enumerate(self.gpus.jobs) if not here]
        for gpu, combination in zip(free, sorted(missing), strict=False):
            for job in combination:
                self.pool.remove(job)
                self._start_job(job, self.queue.jobs[job].role, (gpu,), now_s)
        is_full = len(jobs) > len(self.gpus.jobs)
        self.rounds.next_s = (floor(now_s / period_s) + 1) * period_s if is_full else inf


def simulate_packed(jobs: Jobs, fleet: Fleet, pair_throughputs: FloatArray, choice: Choice, round_s: float) -> Result:
    """Return the result of *jobs* if *choice* packs them, in rounds, and a suspended job goes on at once."""
    engine = PackingEngine(jobs, fleet, Anywhere(), PairThroughputs(pair_throughputs), lambda _: None)
    order = ByAge(name="rounds", backfill="none", preempts=True, period_s=round_s)
    engine.order_by(Ordering(order=order, predicted_s=jobs.work_s, preemption_s=0.0))
    engine.choice = choice
    return engine.run()
