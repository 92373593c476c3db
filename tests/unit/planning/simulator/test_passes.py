"""A workload manager's own times: starts, looks at the whole queue, nodes that are held, and requeues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from gpusage_hooks.types import Cluster
from gpusage_planning.simulator.contract import Backfill, Colocation, Demand, JobRequest, Jobs, Kind, Policy, Tenant
from gpusage_planning.simulator.engine import OUT_OF_MEMORY_S, simulate
from gpusage_planning.simulator.fleet import Fleet, GpuType
from gpusage_planning.simulator.result import Result
from gpusage_planning.simulator.waiting import Scheduling

HALF, WHOLE, TOO_SMALL = 0, 1, 2
FLEET = Fleet(types=(GpuType(name="t", gpu_count=2),), cluster=Cluster(manager="none", version="", pools=()))


@dataclass(frozen=True)
class Shares(Policy):
    """Halves of GPUs and whole ones."""

    name: str = "shares"
    backfill: Backfill = "any"
    most_per_gpu: int = 2
    remembers: bool = False

    def demand(self, ask: JobRequest) -> Demand:
        """Return half a GPU or a whole one."""
        cap = 1.0 if ask.kind == TOO_SMALL and ask.stage == "first" else None
        return Demand(types=(0,), alone=ask.kind == WHOLE or ask.stage == "rescued", memory_cap_bytes=cap)

    def rank(self, _: JobRequest, __: int, /) -> float:
        """Return the same for all."""
        return 0.0

    def cost(self, _: int, tenants: Sequence[JobRequest], __: JobRequest, /) -> float | None:
        """Return less where somebody stands already."""
        return float(-len(tenants))


class Truth:
    """Nobody slows anybody; a job of the last kind needs more than its cap."""

    def speed(self, _: int, __: int, /) -> float:
        """Return the same for all."""
        return 1.0

    def memory_bytes(self, _: int, __: int, /) -> float:
        """Return more than the cap."""
        return 2.0

    def colocation_of(self, tenants: Sequence[Tenant], _: int, /) -> Colocation:
        """Return that nobody is slowed."""
        return Colocation((1.0,) * len(tenants), 0.5)


def simulated(*jobs: tuple[int, float], scheduling: Scheduling) -> Result:
    """Return what becomes of jobs, kind and work of each, that come at once; limits are far beyond."""
    count = len(jobs)
    trace = Jobs(
        ids=[str(number) for number in range(count)],
        submit_s=np.zeros(count),
        work_s=np.array([work_s for _, work_s in jobs]),
        limit_s=np.full(count, 1e6),
        gpu_count=np.ones(count, dtype=np.int32),
        kind=np.array([kind for kind, _ in jobs], dtype=np.int32),
        user=np.zeros(count, dtype=np.int32),
        kinds=tuple(Kind(name=str(number)) for number in range(3)),
        users=("someone",),
    )
    return simulate(trace, FLEET, Shares(), Truth(), scheduling=scheduling)


def test_a_start_takes_time_on_the_gpu() -> None:
    result = simulated((WHOLE, 50.0), scheduling=Scheduling(backfill_s=10.0, start_s=3.0))
    assert result.start_s.tolist() == [0.0]
    assert result.end_s.tolist() == [53.0]
    assert result.figures.gpu_hours == pytest.approx(53 / 3600)


def test_what_is_behind_a_job_without_room_waits_for_the_next_look() -> None:
    """Half a GPU is free all the time; the job for a whole one stands before it, until 10 s have passed."""
    jobs = ((WHOLE, 50.0), (HALF, 30.0), (WHOLE, 20.0), (HALF, 5.0))
    result = simulated(*jobs, scheduling=Scheduling(backfill_s=10.0))
    assert result.start_s.tolist() == [0.0, 0.0, 30.0, 10.0]


def test_the_node_that_is_foreseen_for_a_job_without_room_is_held() -> None:
    """With both GPUs on one node, nobody overtakes; the last one starts when the second has ended."""
    jobs = ((WHOLE, 50.0), (HALF, 30.0), (WHOLE, 20.0), (HALF, 5.0))
    result = simulated(*jobs, scheduling=Scheduling(backfill_s=10.0, gpus_per_node=2))
    assert result.start_s.tolist() == [0.0, 0.0, 30.0, 50.0]


def test_a_job_that_ran_out_of_memory_is_away_from_the_queue() -> None:
    result = simulated((TOO_SMALL, 50.0), scheduling=Scheduling(backfill_s=10.0, requeue_s=7.0))
    assert result.last_start_s.tolist() == [OUT_OF_MEMORY_S + 7.0]
    assert result.out_of_memory.tolist() == [1]
