"""Max-min fairness by user, as Gavel has it: fair parts of the time by water filling, kept by rounds.

The level of all rises alike. Who has as much as they can use stays there, and the others rise on. With GPU types that
differ in speed, what rises is a user's throughput, and each step is a linear program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpusage_hooks.errors import RequestError
from gpusage_planning.simulator.contract import FloatArray, IntArray, QueuedJob
from gpusage_planning.simulator.orders import Order, Queue

LEAST_PRICE = 1e-9
"""Below it, a price is 0 but for rounding."""
TOLERANCE = 1e-6
"""Part of a level that a solution may miss; HiGHS keeps constraints to 1e-7."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Claims:
    """Groups of alike jobs that want GPUs; each array has one entry, or row, per group.

    Attributes:
        users: Whose jobs they are.
        jobs: How many jobs each has, at least 1.
        alike: For how many users each user's groups stand: each of them has the same; nothing means one.
        gpus: The GPUs that one of the jobs can use at a time, above 0.
        speeds: Of one of the jobs, for each GPU type; 0 where it must not run. Some type of each group is above 0.
    """

    users: IntArray
    jobs: IntArray
    gpus: FloatArray
    speeds: FloatArray
    alike: IntArray | None = None


def fill(capacity: FloatArray, owners: IntArray, most: FloatArray, counts: IntArray) -> FloatArray:
    """Return what each claim gets of its owner's *capacity*: all the same, but nobody more than its part of *most*.

    An owner's water rises as high as it would with only the smallest claims satisfied, however many these are.

    Args:
        capacity: Of each owner, each with some claim.
        owners: Of each kind of claims, the index into *capacity*.
        most: What one claim can use.
        counts: How many claims of the kind there are.
    """
    order = np.lexsort((most, owners))
    sizes = np.bincount(owners)
    starts = np.cumsum(sizes) - sizes
    each, wants = counts[order].astype(float), (counts * most)[order]
    passed, spent = np.cumsum(each) - each, np.cumsum(wants) - wants
    rest = np.repeat(np.add.reduceat(each, starts), sizes) - (passed - np.repeat(passed[starts], sizes))
    unspent = np.repeat(capacity, sizes) - (spent - np.repeat(spent[starts], sizes))
    levels = np.maximum.reduceat(unspent / rest, starts)
    shares: FloatArray = np.minimum(most, levels[owners])
    return shares


def even_shares(claims: Claims, gpu_count: int) -> FloatArray:
    """Return the part of the time that each group's jobs run, where a GPU counts as any other.

    The GPUs are divided among the users, and each user's among the jobs.
    """
    owners = np.unique(claims.users, return_inverse=True)[1].astype(np.int32)
    wants = np.bincount(owners, weights=claims.jobs * claims.gpus).astype(float)
    together = np.zeros(len(wants), dtype=np.int32)
    gpus = fill(np.array([float(gpu_count)]), together, wants, np.ones_like(together))
    parts: FloatArray = fill(gpus, owners, claims.gpus, claims.jobs) / claims.gpus
    return parts


def throughput_shares(claims: Claims, gpu_counts: Sequence[int]) -> FloatArray:
    """Return the part of the time that each group's jobs run on each GPU type, so that throughputs are max-min fair.

    A job's throughput counts in multiples of what it is on an even part of each type that it may use, times its GPUs;
    in Gavel every job may use all. As there, a user's weight is divided among those of its jobs that can rise.

    Raises:
        RequestError: SciPy is not installed.

    Source:
        Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads", OSDI 2020,
        section 4.3; in its repository, scheduler/policies/max_min_fairness_water_filling.py.
    """
    counts = np.asarray(gpu_counts, dtype=float)
    alike = np.ones_like(claims.jobs) if claims.alike is None else claims.alike
    most = alike * claims.jobs * claims.gpus
    program = _Program(claims.speeds, most, counts)
    level, is_rising = np.zeros(len(claims.users)), np.ones(len(claims.users), dtype=bool)
    gpus = np.zeros_like(claims.speeds)
    while is_rising.any():
        rising_jobs = np.bincount(claims.users, weights=claims.jobs * is_rising)[claims.users]
        weights = np.where(is_rising, alike * claims.jobs / np.maximum(rising_jobs, 1), 0.0)
        step = program.rise(level, weights)
        if step is None:  # the solver misses by rounding what it reached before
            break
        gpus, rise, prices = step
        level += rise * weights
        is_bound = is_rising & (prices > LEAST_PRICE)
        is_rising &= ~(is_bound if is_bound.any() else is_rising)
    parts: FloatArray = np.clip(gpus / most[:, None], 0.0, 1.0)
    return parts


class _Program:
    """How far the levels of all groups can rise at once: a linear program of the GPUs that each has of each type."""

    def __init__(self, speeds: FloatArray, most: FloatArray, counts: FloatArray) -> None:
        groups, types = speeds.shape
        of_even_part = speeds @ counts / ((speeds > 0) @ counts)
        gains = speeds / of_even_part[:, None]
        self._shape = gains.shape
        self._rows = np.zeros((2 * groups + types, groups * types + 1))
        for group in range(groups):
            columns = slice(group * types, (group + 1) * types)
            self._rows[group, columns] = -gains[group]
            self._rows[groups + group, columns] = 1.0
            self._rows[2 * groups :, columns] = np.eye(types)
        self._limits = np.concatenate([np.zeros(groups), most, counts])
        self._costs = np.append(np.zeros(groups * types), -1.0)
        highest = np.append(np.where(gains > 0, most[:, None], 0.0).ravel(), np.inf)
        self._bounds = np.column_stack([np.zeros(len(highest)), highest])

    def rise(self, level: FloatArray, weights: FloatArray) -> tuple[FloatArray, float, FloatArray] | None:
        """Return the GPUs by group and type that raise *level* by most times *weights*, and how many times that is.

        Also return what each group's level costs the others: above 0, it cannot rise further.
        """
        try:
            from scipy.optimize import linprog  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            message = "Library scipy must be there for max-min-speeds; got: not installed. Install the extra [plan]."
            raise RequestError(message) from error
        groups = len(level)
        self._rows[:groups, -1], self._limits[:groups] = weights, -level * (1 - TOLERANCE)
        outcome = linprog(self._costs, A_ub=self._rows, b_ub=self._limits, bounds=self._bounds, method="highs")
        if outcome.x is None:
            return None
        return outcome.x[:-1].reshape(self._shape), float(outcome.x[-1]), -outcome.ineqlin.marginals[:groups]


ROUND_S = 360.0
"""Gavel's time_per_iteration."""
DIGITS = 6
"""Of a rank in seconds. Ranks are differences of sums: without it rounding would decide between equals, not age."""


@dataclass(slots=True)
class _Parts:
    """The fair parts of the time at present, and what they have come to by now for each job.

    Attributes:
        numbers, roles: Of the jobs among which the GPUs are divided.
        parts: Of each job, by number, the part of the time for each GPU type; one column where any counts as any other.
        due_s: Of each job, by number, how long it should have run on each GPU type.
    """

    now_s: float = -1.0
    numbers: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    roles: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    parts: FloatArray = field(default_factory=lambda: np.zeros((0, 1)))
    due_s: FloatArray = field(default_factory=lambda: np.zeros((0, 1)))

    def update(self, now_s: float, queue: Queue, speeds: FloatArray | None) -> None:
        """Let the time pass up to *now_s*, and divide the GPUs among the jobs that are there now."""
        if self.now_s == now_s:
            return
        self.due_s[self.numbers] += self.parts[self.numbers] * (now_s - self.now_s)
        self.now_s = now_s
        numbers = np.fromiter(queue.jobs, dtype=np.int32, count=len(queue.jobs))
        roles = queue.columns.role[numbers]
        if np.array_equal(numbers, self.numbers) and np.array_equal(roles, self.roles):
            return
        self.numbers, self.roles = numbers, roles
        parts = _even(numbers, queue) if speeds is None else _by_speed(numbers, queue, speeds)
        if not len(self.due_s):
            self.parts, self.due_s = (np.zeros((len(queue.columns.user), parts.shape[1])) for _ in range(2))
        self.parts[numbers] = parts

    def due_by_s(self, numbers: IntArray, round_s: float) -> FloatArray:
        """Return how long jobs should have run by the end of a round of *round_s*."""
        due_s: FloatArray = self.due_s[numbers] + self.parts[numbers] * round_s
        return due_s


def _even(numbers: IntArray, queue: Queue) -> FloatArray:
    """Return the part of the time of each job, in one column."""
    ones, columns = np.ones(len(numbers), dtype=np.int32), queue.columns
    claims = Claims(
        users=columns.user[numbers], jobs=ones, gpus=columns.gpus[numbers], speeds=np.ones((len(numbers), 1))
    )
    return even_shares(claims, queue.fleet.gpu_count)[:, None]


def _by_speed(numbers: IntArray, queue: Queue, speeds: FloatArray) -> FloatArray:
    """Return the part of the time of each job on each GPU type.

    A user's jobs of one role are alike, and so are users with as many jobs of each role: they count once.
    """
    if speeds.shape[1] == 1:  # a job's throughput over its usual one is then its part of the time
        return _even(numbers, queue)
    users, user_of = np.unique(queue.columns.user[numbers], return_inverse=True)
    roles, examples, role_of = np.unique(queue.columns.role[numbers], return_index=True, return_inverse=True)
    jobs = np.zeros((len(users), len(roles)), dtype=np.int32)
    np.add.at(jobs, (user_of, role_of), 1)
    jobs, class_of, alike = np.unique(jobs, axis=0, return_inverse=True, return_counts=True)
    owners, places = np.nonzero(jobs)
    queued = [queue.jobs[number] for number in numbers[examples[places]].tolist()]
    claims = Claims(
        users=owners.astype(np.int32),
        alike=alike[owners].astype(np.int32),
        jobs=jobs[owners, places],
        gpus=np.array([job.gpus for job in queued]),
        speeds=_allowed(speeds, queued),
    )
    parts = np.zeros((*jobs.shape, speeds.shape[1]))
    parts[owners, places] = throughput_shares(claims, [one.gpu_count for one in queue.fleet.types])
    of_jobs: FloatArray = parts[class_of.ravel()[user_of], role_of]  # numpy 2.0 gives the inverse two axes
    return of_jobs


def _allowed(speeds: FloatArray, jobs: list[QueuedJob]) -> FloatArray:
    """Return each job's speeds, 0 on GPU types on which it must not run."""
    allowed = np.zeros((len(jobs), speeds.shape[1]))
    for row, job in enumerate(jobs):
        allowed[row, list(job.types)] = speeds[job.kind, list(job.types)]
    return allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxMin(Order):
    """The job first that is most behind its fair part of the time; any GPU counts as any other."""

    name: str = "max-min"
    preempts: bool = True
    period_s: float = ROUND_S
    fair: _Parts = field(default_factory=_Parts)

    def rank(self, job: QueuedJob, now_s: float, queue: Queue, /) -> float:
        """Return how far the job is ahead, in seconds, at the end of a round in which it does not run."""
        ranks = self.ranks(np.array([job.number], dtype=np.int32), now_s, queue)[0]
        return float(ranks[list(job.types)].min() if self.is_by_gpu_type else ranks[0])

    def ranks(self, numbers: IntArray, now_s: float, queue: Queue, /) -> FloatArray:
        """Return the same of each job."""
        self.fair.update(now_s, queue, None)
        run_s: FloatArray = queue.run_times_s(numbers).sum(axis=1, keepdims=True)
        return np.round(run_s - self.fair.due_by_s(numbers, self.period_s), DIGITS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaxMinSpeeds(MaxMin):
    """The same for each GPU type, where fair is that nobody's throughput can rise at the cost of a lower one.

    Attributes:
        speeds: Predicted speed of each kind on each GPU type.
    """

    speeds: FloatArray
    name: str = "max-min-speeds"
    is_by_gpu_type: bool = True

    def ranks(self, numbers: IntArray, now_s: float, queue: Queue, /) -> FloatArray:
        """Return how far each job is ahead on GPUs of each type, in seconds, as above."""
        self.fair.update(now_s, queue, self.speeds)
        return np.round(queue.run_times_s(numbers) - self.fair.due_by_s(numbers, self.period_s), DIGITS)
