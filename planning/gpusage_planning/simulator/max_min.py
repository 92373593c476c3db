"""Max-min fairness by user, as Gavel has it: fair parts of the time by water filling, kept by rounds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpusage_planning.simulator.contract import Backfill, QueuedJob, QueueState
from gpusage_planning.simulator.jobs import FloatArray, IntArray
from gpusage_planning.simulator.water_filling import Claims, even_shares, throughput_shares

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

    def update(self, now_s: float, state: QueueState, speeds: FloatArray | None) -> None:
        """Let the time pass up to *now_s*, and divide the GPUs among the jobs that are there now."""
        if self.now_s == now_s:
            return
        self.due_s[self.numbers] += self.parts[self.numbers] * (now_s - self.now_s)
        self.now_s = now_s
        numbers = np.fromiter(state.jobs, dtype=np.int32, count=len(state.jobs))
        roles = state.columns.role[numbers]
        if np.array_equal(numbers, self.numbers) and np.array_equal(roles, self.roles):
            return
        self.numbers, self.roles = numbers, roles
        parts = _even(numbers, state) if speeds is None else _by_speed(numbers, state, speeds)
        if not len(self.due_s):
            self.parts, self.due_s = (np.zeros((len(state.columns.user), parts.shape[1])) for _ in range(2))
        self.parts[numbers] = parts

    def due_by_s(self, numbers: IntArray, round_s: float) -> FloatArray:
        """Return how long jobs should have run by the end of a round of *round_s*."""
        due_s: FloatArray = self.due_s[numbers] + self.parts[numbers] * round_s
        return due_s


def _even(numbers: IntArray, state: QueueState) -> FloatArray:
    """Return the part of the time of each job, in one column."""
    ones, columns = np.ones(len(numbers), dtype=np.int32), state.columns
    claims = Claims(
        users=columns.user[numbers], jobs=ones, gpus=columns.gpus[numbers], speeds=np.ones((len(numbers), 1))
    )
    return even_shares(claims, state.fleet.gpu_count)[:, None]


def _by_speed(numbers: IntArray, state: QueueState, speeds: FloatArray) -> FloatArray:
    """Return the part of the time of each job on each GPU type.

    A user's jobs of one role are alike, and so are users with as many jobs of each role: they count once.
    """
    if speeds.shape[1] == 1:  # a job's throughput over its usual one is then its part of the time
        return _even(numbers, state)
    users, user_of = np.unique(state.columns.user[numbers], return_inverse=True)
    roles, examples, role_of = np.unique(state.columns.role[numbers], return_index=True, return_inverse=True)
    jobs = np.zeros((len(users), len(roles)), dtype=np.int32)
    np.add.at(jobs, (user_of, role_of), 1)
    jobs, class_of, alike = np.unique(jobs, axis=0, return_inverse=True, return_counts=True)
    owners, places = np.nonzero(jobs)
    queued = [state.jobs[number] for number in numbers[examples[places]].tolist()]
    claims = Claims(
        users=owners.astype(np.int32),
        alike=alike[owners].astype(np.int32),
        jobs=jobs[owners, places],
        gpus=np.array([job.gpus for job in queued]),
        speeds=_allowed(speeds, queued),
    )
    parts = np.zeros((*jobs.shape, speeds.shape[1]))
    parts[owners, places] = throughput_shares(claims, [one.gpu_count for one in state.fleet.types])
    of_jobs: FloatArray = parts[class_of.ravel()[user_of], role_of]  # numpy 2.0 gives the inverse two axes
    return of_jobs


def _allowed(speeds: FloatArray, jobs: list[QueuedJob]) -> FloatArray:
    """Return each job's speeds, 0 on GPU types on which it must not run."""
    allowed = np.zeros((len(jobs), speeds.shape[1]))
    for row, job in enumerate(jobs):
        allowed[row, list(job.types)] = speeds[job.kind, list(job.types)]
    return allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxMin:
    """The job first that is most behind its fair part of the time; any GPU counts as any other."""

    name: str = "max-min"
    backfill: Backfill = "none"
    preempts: bool = True
    period_s: float = ROUND_S
    is_by_gpu_type: bool = False
    fair: _Parts = field(default_factory=_Parts)

    def rank(self, job: QueuedJob, now_s: float, state: QueueState, /) -> float:
        """Return how far the job is ahead, in seconds, at the end of a round in which it does not run."""
        return float(self.ranks(np.array([job.number], dtype=np.int32), now_s, state)[0, 0])

    def ranks(self, numbers: IntArray, now_s: float, state: QueueState, /) -> FloatArray:
        """Return the same of each job."""
        self.fair.update(now_s, state, None)
        run_s: FloatArray = state.run_times_s(numbers).sum(axis=1, keepdims=True)
        return np.round(run_s - self.fair.due_by_s(numbers, self.period_s), DIGITS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaxMinSpeeds:
    """The same for each GPU type, where fair is that nobody's throughput can rise at the cost of a lower one.

    Attributes:
        speeds: Predicted speed of each kind on each GPU type.
    """

    speeds: FloatArray
    name: str = "max-min-speeds"
    backfill: Backfill = "none"
    preempts: bool = True
    period_s: float = ROUND_S
    is_by_gpu_type: bool = True
    fair: _Parts = field(default_factory=_Parts)

    def rank(self, job: QueuedJob, now_s: float, state: QueueState, /) -> float:
        """Return the least over the job's GPU types of how far it is ahead there."""
        return float(self.ranks(np.array([job.number], dtype=np.int32), now_s, state)[0, list(job.types)].min())

    def ranks(self, numbers: IntArray, now_s: float, state: QueueState, /) -> FloatArray:
        """Return how far each job is ahead on GPUs of each type, in seconds, as above."""
        self.fair.update(now_s, state, self.speeds)
        return np.round(state.run_times_s(numbers) - self.fair.due_by_s(numbers, self.period_s), DIGITS)
