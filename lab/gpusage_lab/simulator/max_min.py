"""Max-min fairness by user, as Gavel has it: fair parts of the time by water filling, kept by rounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from gpusage_lab.simulator.contract import Backfill, QueuedJob, QueueState
from gpusage_lab.simulator.jobs import FloatArray
from gpusage_lab.simulator.water_filling import Claims, even_shares, throughput_shares

ROUND_S = 360.0
"""Gavel's time_per_iteration."""
Group = tuple[int, int]
"""User and role of alike jobs."""


@dataclass(slots=True)
class _Parts:
    """The fair parts of the time at present, and what they have come to by now for each job.

    Attributes:
        jobs: Those among which the GPUs are divided.
        parts: Of each group, the part of the time for each GPU type; one column where any GPU counts as any other.
        due_s: Of each job, how long it should have run on each GPU type.
    """

    now_s: float = -1.0
    jobs: dict[int, Group] = field(default_factory=dict)
    parts: dict[Group, FloatArray] = field(default_factory=dict)
    due_s: dict[int, FloatArray] = field(default_factory=dict)

    def advance(self, now_s: float) -> None:
        """Let the time pass up to *now_s*."""
        for number, group in self.jobs.items():
            self.due_s[number] += self.parts[group] * (now_s - self.now_s)
        self.now_s = now_s

    def divide(self, state: QueueState, speeds: FloatArray | None) -> None:
        """Divide the GPUs among the jobs that are there now, if they are others than before."""
        jobs = {number: (job.user, job.role) for number, job in state.jobs.items()}
        if jobs == self.jobs:
            return
        self.jobs = jobs
        counts = Counter(jobs.values())
        examples = {(job.user, job.role): job for job in state.jobs.values()}
        groups = sorted(counts)
        claims = Claims(
            users=np.array([user for user, _ in groups], dtype=np.int32),
            jobs=np.array([counts[group] for group in groups], dtype=np.int32),
            gpus=np.array([examples[group].gpus for group in groups]),
            speeds=np.ones((len(groups), 1)) if speeds is None else _allowed(speeds, [examples[one] for one in groups]),
        )
        if speeds is None:
            parts = even_shares(claims, state.fleet.gpu_count)[:, None]
        else:
            parts = throughput_shares(claims, [one.gpu_count for one in state.fleet.types])
        self.parts = dict(zip(groups, parts, strict=True))
        self.due_s = {number: self.due_s.get(number, np.zeros(parts.shape[1])) for number in jobs}


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
    fair: _Parts = field(default_factory=_Parts)

    def rank(self, job: QueuedJob, now_s: float, state: QueueState, /) -> float:
        """Return how far the job is ahead, in seconds, at the end of a round in which it does not run."""
        _update(self.fair, now_s, state, None)
        due_s = self.fair.due_s[job.number][0] + self.fair.parts[job.user, job.role][0] * self.period_s
        return float(sum(state.run_s(job, gpu_type) for gpu_type in job.types) - due_s)


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
    fair: _Parts = field(default_factory=_Parts)

    def rank(self, job: QueuedJob, now_s: float, state: QueueState, /) -> float:
        """Return the least of `rank_on`."""
        return min(self.rank_on(job, gpu_type, now_s, state) for gpu_type in job.types)

    def rank_on(self, job: QueuedJob, gpu_type: int, now_s: float, state: QueueState, /) -> float:
        """Return how far the job is ahead on GPUs of the type, in seconds, as above."""
        _update(self.fair, now_s, state, self.speeds)
        due_s = self.fair.due_s[job.number][gpu_type] + self.fair.parts[job.user, job.role][gpu_type] * self.period_s
        return float(state.run_s(job, gpu_type) - due_s)


def _update(fair: _Parts, now_s: float, state: QueueState, speeds: FloatArray | None) -> None:
    if fair.now_s != now_s:
        fair.advance(now_s)
        fair.divide(state, speeds)
