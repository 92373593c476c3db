"""Max-min fairness by user, as Gavel has it: fair parts of the time by water filling, kept by rounds.

The level of all rises alike. Who has as much as they can use stays there, and the others rise on.

Source:
    Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads", OSDI 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpusage_planning.simulator.contract import FloatArray, IntArray, QueuedJob
from gpusage_planning.simulator.orders import Order, Queue

ROUND_S = 360.0
"""Gavel's time_per_iteration."""
DIGITS = 6
"""Of a rank in seconds. Ranks are differences of sums: without it rounding would decide between equals, not age."""


def fill(capacity: FloatArray, owners: IntArray, most: FloatArray) -> FloatArray:
    """Return what each claim gets of its owner's *capacity*: all the same, but nobody more than its part of *most*.

    An owner's water rises as high as it would with only the smallest claims satisfied, however many these are.

    Args:
        capacity: Of each owner, each with some claim.
        owners: Of each claim, the index into *capacity*.
        most: What each claim can use.
    """
    order = np.lexsort((most, owners))
    sizes = np.bincount(owners)
    starts = np.cumsum(sizes) - sizes

    # Of each claim, the smallest of its owner first: the claims that are not smaller, and what the smaller ones leave.
    wants = most[order]
    spent = np.cumsum(wants) - wants
    rest = np.repeat(sizes + starts, sizes) - np.arange(len(order))
    unspent = np.repeat(capacity, sizes) - (spent - np.repeat(spent[starts], sizes))

    levels = np.maximum.reduceat(unspent / rest, starts)
    shares: FloatArray = np.minimum(most, levels[owners])
    return shares


def even_shares(users: IntArray, gpus: FloatArray, gpu_count: int) -> FloatArray:
    """Return the part of the time that each job runs, where a GPU counts as any other.

    The GPUs are divided among the users, and each user's among the jobs.

    Args:
        users: Whose jobs they are.
        gpus: The GPUs that each job can use at a time, above 0.
        gpu_count: Of the cluster.
    """
    owners = np.unique(users, return_inverse=True)[1].astype(np.int32)
    wants = np.bincount(owners, weights=gpus).astype(float)
    of_users = fill(np.array([float(gpu_count)]), np.zeros(len(wants), dtype=np.int32), wants)
    parts: FloatArray = fill(of_users, owners, gpus) / gpus
    return parts


@dataclass(slots=True)
class _Parts:
    """The fair parts of the time at present, and what they have come to by now for each job.

    Attributes:
        numbers: Of the jobs among which the GPUs are divided.
        gpus: Of each of these.
        parts: Of each job, by number, the part of the time.
        due_s: Of each job, by number, how long it should have run.
    """

    now_s: float = -1.0
    numbers: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    gpus: FloatArray = field(default_factory=lambda: np.zeros(0))
    parts: FloatArray = field(default_factory=lambda: np.zeros(0))
    due_s: FloatArray = field(default_factory=lambda: np.zeros(0))

    def update(self, now_s: float, queue: Queue) -> None:
        """Let the time pass up to *now_s*, and divide the GPUs among the jobs that are there now."""
        if self.now_s == now_s:
            return
        self.due_s[self.numbers] += self.parts[self.numbers] * (now_s - self.now_s)
        self.now_s = now_s

        numbers = np.fromiter(queue.jobs, dtype=np.int32, count=len(queue.jobs))
        gpus = queue.gpus[numbers]
        if np.array_equal(numbers, self.numbers) and np.array_equal(gpus, self.gpus):
            return
        self.numbers, self.gpus = numbers, gpus
        if not len(self.due_s):
            self.parts, self.due_s = np.zeros((2, len(queue.gpus)))
        self.parts[numbers] = even_shares(queue.users[numbers], gpus, queue.fleet.gpu_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxMin(Order):
    """The job first that is most behind its fair part of the time; any GPU counts as any other."""

    name: str = "max-min"
    preempts: bool = True
    period_s: float = ROUND_S
    fair: _Parts = field(default_factory=_Parts)

    def rank(self, job: QueuedJob, now_s: float, queue: Queue, /) -> float:
        """Return how far the job is ahead, in seconds, at the end of a round in which it does not run."""
        return float(self.ranks(np.array([job.number], dtype=np.int32), now_s, queue)[0])

    def ranks(self, numbers: IntArray, now_s: float, queue: Queue, /) -> FloatArray:
        """Return the same of each job."""
        self.fair.update(now_s, queue)
        due_s = self.fair.due_s[numbers] + self.fair.parts[numbers] * self.period_s
        return np.round(queue.run_times_s(numbers) - due_s, DIGITS)
