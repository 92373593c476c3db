"""Whatever jobs come: no GPU is overbooked, work is conserved, every job ends, and the same question has one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusage_hooks.types import Cluster
from gpusage_planning.simulator.contract import Backfill, Colocation, Demand, JobRequest, Jobs, Policy, Tenant
from gpusage_planning.simulator.engine import OUT_OF_MEMORY_S, simulate
from gpusage_planning.simulator.fleet import Fleet, GpuType
from gpusage_planning.simulator.waiting import Scheduling
from simulated import KINDS, traces

MEMORY = (0.2, 0.5, 0.9)
"""Of each kind, in parts of a GPU."""
PROFILING_S = 7.0


@dataclass(frozen=True, kw_only=True)
class Packing(Policy):
    """Packs by the kinds' numbers; the memory that it believes is half of the true one."""

    backfill: Backfill
    most_per_gpu: int
    profiles: bool
    name: str = "packing"
    remembers: bool = False

    def demand(self, ask: JobRequest) -> Demand:
        """Return a whole GPU for jobs on several and for those that ran out of memory."""
        if self.profiles and ask.stage == "first":
            return Demand(types=(1, 0), profiling_s=PROFILING_S)
        alone = ask.gpu_count > 1 or ask.stage == "rescued"
        return Demand(types=(0, 1), alone=alone, accepted_slowdown=None if alone else 1.2)

    def rank(self, ask: JobRequest, gpu_type: int) -> float:
        """Return an order that differs by type."""
        return float((ask.kind + gpu_type) % KINDS)

    def cost(self, gpu_type: int, tenants: Sequence[JobRequest], newcomer: JobRequest) -> float | None:
        """Return how many stand there already."""
        estimated_bytes = sum(MEMORY[one.kind] / 2 for one in [*tenants, newcomer])
        return None if estimated_bytes > 1 else float(len(tenants) + gpu_type)


class Truth:
    """Jobs beside others are slower, the second type is faster."""

    def speed(self, kind: int, gpu_type: int) -> float:
        """Return 1 on the old type."""
        return 1.0 + kind * gpu_type

    def memory_bytes(self, kind: int, _: int, /) -> float:
        """Return the kind's memory."""
        return MEMORY[kind]

    def colocation_of(self, tenants: Sequence[Tenant], _: int, /) -> Colocation:
        """Return the same for all."""
        return Colocation(tuple(1 / len(tenants) ** 0.5 for _ in tenants), 0.5 + 0.1 * len(tenants))


FLEET = Fleet(
    types=(GpuType(name="old", gpu_count=3, memory_bytes=1), GpuType(name="new", gpu_count=2, memory_bytes=1)),
    cluster=Cluster(manager="none", version="", pools=()),
)
POLICIES = st.builds(
    Packing,
    backfill=st.sampled_from(["none", "reserve", "any"]),
    most_per_gpu=st.integers(1, 3),
    profiles=st.booleans(),
)

SCHEDULING = st.builds(
    Scheduling,
    backfill_s=st.sampled_from([0.5, 7.0, 60.0]),
    start_s=st.sampled_from([0.0, 3.0]),
    requeue_s=st.sampled_from([0.0, 11.0]),
    gpus_per_node=st.integers(1, 3),
)


@settings(deadline=None, max_examples=150)
@given(traces(), POLICIES)
def test_every_job_ends_after_its_work_and_never_before(jobs: Jobs, policy: Packing) -> None:
    result = simulate(jobs, FLEET, policy, Truth())
    assert not np.isnan(result.end_s).any()
    assert (result.start_s >= jobs.submit_s).all()
    fastest = 1.0 + jobs.kind
    assert (result.end_s - result.last_start_s >= jobs.work_s / fastest * (1 - 1e-9)).all()
    waste_s = PROFILING_S * policy.profiles + OUT_OF_MEMORY_S * result.out_of_memory
    assert (result.last_start_s - result.start_s >= waste_s - 1e-6).all()


@settings(deadline=None, max_examples=150)
@given(traces(), POLICIES)
def test_no_gpu_is_overbooked_and_the_time_on_gpus_adds_up(jobs: Jobs, policy: Packing) -> None:
    result = simulate(jobs, FLEET, policy, Truth())
    events = sorted(
        [(start, 1, count) for start, count in zip(result.last_start_s, jobs.gpu_count, strict=True)]
        + [(end, 0, -count) for end, count in zip(result.end_s, jobs.gpu_count, strict=True)]
    )
    standing = np.cumsum([count for *_, count in events])
    assert standing.max() <= FLEET.gpu_count * policy.most_per_gpu
    figures = result.figures
    assert figures.gpu_hours * 3600 <= FLEET.gpu_count * figures.makespan_s * (1 + 1e-9)
    assert 0 <= figures.utilization <= 1


@settings(deadline=None, max_examples=150)
@given(traces(), POLICIES, SCHEDULING)
def test_every_job_ends_whenever_the_manager_looks(jobs: Jobs, policy: Packing, scheduling: Scheduling) -> None:
    """A job waits for its start each time that it starts, and once more for the queue where it ran out of memory."""
    result = simulate(jobs, FLEET, policy, Truth(), scheduling=scheduling)
    fastest = 1.0 + jobs.kind
    least_s = scheduling.start_s + jobs.work_s / fastest * (1 - 1e-9)
    assert (result.end_s - result.last_start_s >= least_s - 1e-6).all()
    again_s = (scheduling.start_s + OUT_OF_MEMORY_S + scheduling.requeue_s) * result.out_of_memory
    assert (result.last_start_s - result.start_s >= again_s - 1e-6).all()
    assert result.figures.gpu_hours * 3600 <= FLEET.gpu_count * result.figures.makespan_s * (1 + 1e-9)


@settings(deadline=None, max_examples=100)
@given(traces(), st.sampled_from(["none", "reserve", "any"]))
def test_jobs_that_want_to_be_alone_are_alone(jobs: Jobs, backfill: Backfill) -> None:
    result = simulate(jobs, FLEET, Packing(backfill=backfill, most_per_gpu=1, profiles=False), Truth())
    spans: dict[int, list[tuple[float, float]]] = {}
    for gpu, start, end in zip(result.gpu.tolist(), result.start_s, result.end_s, strict=True):
        spans.setdefault(gpu, []).append((start, end))
    for one in spans.values():
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(sorted(one)))
    expected_s = jobs.work_s / np.where(result.gpu < 3, 1.0, 1.0 + jobs.kind)
    assert np.allclose(result.end_s - result.start_s, expected_s)


@settings(deadline=None, max_examples=50)
@given(traces(), POLICIES)
def test_the_same_question_has_the_same_answer(jobs: Jobs, policy: Packing) -> None:
    first, second = (simulate(jobs, FLEET, policy, Truth()) for _ in range(2))
    assert np.array_equal(first.end_s, second.end_s)
    assert first.figures == second.figures


@settings(deadline=None, max_examples=100)
@given(traces())
def test_work_done_is_the_time_times_the_speed(jobs: Jobs) -> None:
    """With two jobs on a GPU at most, a job's run lasts between its time alone and its time beside another."""
    result = simulate(jobs, FLEET, Packing(backfill="any", most_per_gpu=2, profiles=False), Truth())
    assert (result.slowdown >= 1 - 1e-9).all()
    assert (result.slowdown <= 2**0.5 + 1e-9).all()


@given(traces())
def test_in_order_means_that_nobody_overtakes(jobs: Jobs) -> None:
    result = simulate(jobs, FLEET, Packing(backfill="none", most_per_gpu=1, profiles=False), Truth())
    assert (np.diff(result.start_s) >= 0).all()


@given(traces())
def test_the_oldest_job_is_not_delayed_by_younger_ones_where_its_gpus_are_held(jobs: Jobs) -> None:
    """No job starts later than all older ones have ended; where limits are kept, for by them room is foreseen."""
    jobs = replace(jobs, limit_s=np.maximum(jobs.limit_s, jobs.work_s * (1.0 + jobs.kind)))
    result = simulate(jobs, FLEET, Packing(backfill="reserve", most_per_gpu=1, profiles=False), Truth())
    for job in range(1, len(jobs)):
        assert result.start_s[job] <= max(jobs.submit_s[job], result.end_s[:job].max()) + jobs.limit_s.max() + 1e-6
