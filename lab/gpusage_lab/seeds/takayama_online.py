"""Takayama et al.'s jobs as they come: a simulated cluster of two generations, the queue put in order by gain.

The nine jobs, equally often, arrive by chance and last as measured. A policy sees only what it is ranked by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpusage.policies.preference import LEAST_JOBS, gives_way, least_rank
from gpusage.service.reservations import REMEMBERED_JOBS
from gpusage_hooks.types import Cluster, GenerationRules
from gpusage_hooks.units import HOUR_S
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.seeds.takayama import FloatArray, measured, predicted
from gpusage_planning.named_jobs import JOBS
from gpusage_planning.simulator.contract import (
    Arrival,
    Backfill,
    Colocation,
    Demand,
    JobRequest,
    Jobs,
    Kind,
    Policy,
    Tenant,
)
from gpusage_planning.simulator.engine import simulate
from gpusage_planning.simulator.fleet import Fleet, GpuType
from gpusage_planning.simulator.source import range_ids

GPUS, COUNT, LOADS, SEEDS = 4, 900, (0.7, 0.95), 5
OLD, NEW = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Truth:
    """Each kind's measured speed on either generation, against the old one."""

    gains: FloatArray

    def speed(self, kind: int, gpu_type: int, /) -> float:
        """Return the work that is done in a second."""
        return float(self.gains[kind]) if gpu_type == NEW else 1.0

    def memory_bytes(self, _: int, __: int, /) -> float:
        """Return 0: every job fits."""
        return 0.0

    def colocation_of(self, tenants: Sequence[Tenant], _: int, /) -> Colocation:
        """Return that of one job; nobody shares."""
        return Colocation((1.0,) * len(tenants), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ByGain(Policy):
    """Jobs go to the generation that suits them best among those that are free; the queue is in order of the gain.

    Attributes:
        gains: What the policy believes that each kind gains; all alike, and it is first come, first served.
        ordered: Whether the queue is put in order, or only GPUs are preferred.
    """

    gains: FloatArray
    ordered: bool = True
    backfill: Backfill = "any"

    def demand(self, ask: JobRequest) -> Demand:
        """Return both generations, the one that suits first."""
        likes_new = ask.first == NEW if ask.first >= 0 else self.gain(ask) >= GenerationRules().minimum_speedup
        return Demand(types=(NEW, OLD) if likes_new else (OLD, NEW))

    def rank(self, ask: JobRequest, gpu_type: int) -> float:
        """Return the place in the queue for one generation, the least first.

        New GPUs go first to the jobs that gain most, old ones to those that lose least, as in Takayama et al.'s
        "Priority Assignment"; no GPU waits for a better match.
        """
        gain = self.gain(ask) if self.ordered else 0.0
        return -gain if gpu_type == NEW else gain

    def gain(self, ask: JobRequest) -> float:
        """Return what the policy believes that the job gains."""
        return float(self.gains[ask.kind])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AmongRecentJobs(ByGain):
    """GPUs are preferred by the rule of gpusaged: each job is compared with recent ones when it arrives.

    Attributes:
        late: The gains of recent jobs, the newest last.
    """

    ordered: bool = False
    late: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_JOBS))

    def arriving(self, ask: JobRequest, seen: Arrival) -> JobRequest:
        """Return *ask* with the generation that it prefers."""
        gain, gains = self.gain(ask), [*self.late]
        self.late.append(gain)
        if len(gains) < LEAST_JOBS or not all(seen.free_counts):
            return ask
        is_left = gives_way(gain, gains, least_rank(seen.free_counts[NEW], GPUS, GPUS))
        return ask._replace(first=OLD if is_left else NEW)


def fleet() -> Fleet:
    """Return as many GPUs of either generation."""
    types = (GpuType(name="p100", gpu_count=GPUS), GpuType(name="v100", gpu_count=GPUS))
    return Fleet(types=types, cluster=Cluster(manager="", version="", pools=()))


def jobs(load: float, seed: int) -> Jobs:
    """Return the jobs of one run; *load* is against both generations half and half."""
    old, new = measured()
    generator = np.random.default_rng(seed)
    kind = generator.permutation(np.arange(COUNT) % len(JOBS)).astype(np.int32)
    work_s = old[kind] * HOUR_S
    usual_s = float((old + new).mean()) / 2.0 * HOUR_S
    submit_s = np.cumsum(generator.exponential(usual_s / (2 * GPUS * load), COUNT))
    return Jobs(
        ids=range_ids(COUNT),
        submit_s=submit_s,
        work_s=work_s,
        limit_s=work_s,
        gpu_count=np.ones(COUNT, dtype=np.int32),
        kind=kind,
        user=np.zeros(COUNT, dtype=np.int32),
        kinds=tuple(Kind(name=job.name) for job in JOBS),
        users=("all",),
    )


def policies() -> tuple[ByGain, ...]:
    """Return who decides: nobody, today's preference, and the queue in order by what is known."""
    old, new = measured()
    predictions = predicted()
    observed = np.array([job.utilization for job in JOBS]) / 100.0
    guess = 1.0 / predictions.ratio
    return (
        ByGain(name="evenly, first come", gains=np.ones(len(JOBS)), ordered=False),
        ByGain(name="preferred by predicted gain, first come", gains=guess, ordered=False),
        AmongRecentJobs(name="preferred by predicted gain among rivals", gains=guess),
        AmongRecentJobs(name="preferred by observed utilization among rivals", gains=1.0 + observed),
        AmongRecentJobs(name="preferred by measured gain among rivals", gains=old / new),
        ByGain(name="in order of predicted gain", gains=guess),
        ByGain(name="in order of observed utilization", gains=1.0 + observed),
        ByGain(name="in order of measured gain", gains=old / new),
        ByGain(name="observed utilization, the oldest job protected", gains=1.0 + observed, backfill="reserve"),
    )


def table() -> ScoreTable:
    """Return mean times of every policy at every load, the mean of some runs."""
    rows: list[tuple[str | float | None, ...]] = []
    for load in LOADS:
        rows += [(f"load {load:.2f}: {policy.name}", *_figures(policy, load)) for policy in policies()]
    return ScoreTable(
        title=f"Takayama, as jobs come: {GPUS} P100 and {GPUS} V100, {COUNT} jobs, the mean of {SEEDS} runs",
        columns=("policy", "GPU hours", "mean time to the end, h", "mean wait, h", "p95 wait, h", "longest wait, h"),
        rows=tuple(rows),
        notes=(
            "Jobs arrive by chance; load 1 would keep all GPUs busy with half of each kind on either generation.",
            "No GPU is left empty while a job waits, whatever the order.",
        ),
    )


def _figures(policy: ByGain, load: float) -> tuple[float, ...]:
    truth = Truth(gains=measured()[0] / measured()[1])
    runs = [simulate(jobs(load, seed), fleet(), policy, truth) for seed in range(SEEDS)]
    waits = [run.start_s - run.jobs.submit_s for run in runs]
    figures = [
        [run.figures.gpu_hours for run in runs],
        [run.figures.jct_s / HOUR_S for run in runs],
        [float(wait.mean()) / HOUR_S for wait in waits],
        [float(np.percentile(wait, 95)) / HOUR_S for wait in waits],
        [float(wait.max()) / HOUR_S for wait in waits],
    ]
    return tuple(float(np.mean(values)) for values in figures)
