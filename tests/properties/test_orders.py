"""Whoever goes first and whoever is suspended: every job ends, no work is lost, and no GPU is overbooked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpusage_hooks.types import Cluster
from gpusage_hooks.units import GIB
from gpusage_planning.simulator.contract import (
    Backfill,
    Colocation,
    Demand,
    JobRequest,
    Jobs,
    Policy,
    QueuedJob,
    Tenant,
)
from gpusage_planning.simulator.engine import simulate
from gpusage_planning.simulator.fleet import Fleet, GpuType
from gpusage_planning.simulator.max_min import MaxMin, even_shares, fill
from gpusage_planning.simulator.orders import (
    ByAge,
    LeastAttainedService,
    Multifactor,
    Order,
    Ordering,
    Queue,
    ShortestJob,
    ShortestRemainingTime,
)
from gpusage_planning.simulator.result import Result
from gpusage_planning.simulator.rounds import simulate_ordered
from simulated import KINDS, traces

TRACES = traces(most_jobs=30, users=3)
SPEEDS = np.array([[1.0, 1.0 + kind] for kind in range(KINDS)])
FLEET = Fleet(
    types=(
        GpuType(name="old", gpu_count=4, gpus_per_node=2, memory_bytes=16 * GIB),
        GpuType(name="new", gpu_count=2, memory_bytes=32 * GIB),
    ),
    cluster=Cluster(manager="none", version="", pools=()),
)
PREEMPTION_S = 3.0
ORDERS: dict[str, Callable[[], Order]] = {
    "fifo": lambda: ByAge(name="fifo", backfill="none"),
    "easy": lambda: ByAge(name="easy", backfill="reserve"),
    "sjf": ShortestJob,
    "sjf-easy": lambda: ShortestJob(backfill="reserve"),
    "multifactor": lambda: Multifactor(period_s=20.0),
    "srtf": ShortestRemainingTime,
    "las": lambda: LeastAttainedService(period_s=6.0),
    "max-min": lambda: MaxMin(period_s=10.0),
}


@dataclass(frozen=True)
class Shares(Policy):
    """Shares of a half for the third kind, whole GPUs for the others; no order of its own."""

    backfill: Backfill = "reserve"
    shares: bool = True
    most_per_gpu: int = 2
    name: str = "shares"
    remembers: bool = False

    def demand(self, ask: JobRequest) -> Demand:
        """Return a share, which holds too little memory on the old type, else whole GPUs."""
        if self.shares and ask.kind == KINDS - 1 and ask.gpu_count == 1 and ask.stage == "first":
            return Demand(types=(0, 1), share_percent=50, alone=False, memory_cap_bytes=1.0 * GIB)
        return Demand(types=tuple(one for one in (0, 1) if FLEET.types[one].gpu_count >= ask.gpu_count))

    def rank(self, _: JobRequest, __: int, /) -> float:
        """Return the same for all."""
        return 0.0

    def cost(self, _: int, tenants: list[JobRequest], __: JobRequest, /) -> float | None:
        """Return that two shares are enough."""
        return 0.0 if len(tenants) < 2 else None


class Truth:
    """The new type is faster for some kinds; shares slow nobody."""

    def speed(self, kind: int, gpu_type: int, /) -> float:
        """Return the speed that is predicted."""
        return float(SPEEDS[kind, gpu_type])

    def memory_bytes(self, _: int, __: int, /) -> float:
        """Return more than half of an old GPU."""
        return 10.0 * GIB

    def colocation_of(self, tenants: list[Tenant], _: int, /) -> Colocation:
        """Return that nobody is slowed."""
        return Colocation((1.0,) * len(tenants), 0.5)


def outcome(jobs: Jobs, name: str, policy: Shares) -> Result:
    """Return what becomes of *jobs* where time limits are the predictions."""
    ordering = Ordering(order=ORDERS[name](), predicted_s=jobs.limit_s, preemption_s=PREEMPTION_S)
    return simulate_ordered(jobs, FLEET, policy, Truth(), ordering)


@pytest.mark.parametrize("name", ORDERS)
@settings(deadline=None, max_examples=60)
@given(jobs=TRACES, shares=st.booleans())
def test_every_job_ends_and_does_exactly_its_work(name: str, jobs: Jobs, shares: bool) -> None:
    """Where nobody is slowed, the runs of a job last as long as its work alone, however often it was suspended."""
    result = outcome(jobs, name, Shares(shares=shares))
    assert not np.isnan(result.end_s).any()
    assert (result.start_s >= jobs.submit_s).all()
    assert np.allclose(result.slowdown, 1.0)
    lasting_s = jobs.work_s / SPEEDS[jobs.kind].max(axis=1) + PREEMPTION_S * np.minimum(result.preemptions, 1)
    assert (result.end_s - result.start_s >= lasting_s * (1 - 1e-9)).all()


@pytest.mark.parametrize("name", ORDERS)
@settings(deadline=None, max_examples=60)
@given(jobs=TRACES)
def test_gpu_time_is_the_work_and_the_cost_of_suspending(name: str, jobs: Jobs) -> None:
    """No GPU has two jobs that want it alone, and all of its time is somebody's."""
    result = outcome(jobs, name, Shares(shares=False))
    figures = result.figures
    assert figures.shared_time == 0
    assert figures.gpu_hours * 3600 <= FLEET.gpu_count * figures.makespan_s * (1 + 1e-9)
    least_s = float((jobs.gpu_count * jobs.work_s / SPEEDS[jobs.kind].max(axis=1)).sum())
    cost_s = float((jobs.gpu_count * result.preemptions).sum()) * PREEMPTION_S
    most_s = float((jobs.gpu_count * jobs.work_s).sum()) + cost_s
    assert least_s * (1 - 1e-9) <= figures.gpu_hours * 3600 <= most_s * (1 + 1e-9)


@settings(deadline=None, max_examples=100)
@given(jobs=TRACES, case=st.sampled_from([("fifo", True), ("fifo", False), ("easy", False)]))
def test_orders_by_age_are_what_happens_without_an_order(jobs: Jobs, case: tuple[str, bool]) -> None:
    """Apart from this: an order by age with backfill holds GPUs anew for an older job that ran out of memory."""
    name, shares = case
    backfill: Backfill = "none" if name == "fifo" else "reserve"
    before = simulate(jobs, FLEET, Shares(backfill=backfill, shares=shares), Truth())
    after = outcome(jobs, name, Shares(shares=shares))
    assert np.array_equal(before.start_s, after.start_s)
    assert np.array_equal(before.end_s, after.end_s)
    assert before.figures == after.figures


@settings(deadline=None, max_examples=100)
@given(jobs=TRACES)
def test_where_nobody_overtakes_a_job_starts_before_all_longer_ones(jobs: Jobs) -> None:
    result = outcome(jobs, "sjf", Shares(shares=False))
    for job in range(len(jobs)):
        waited = (jobs.submit_s < result.start_s[job]) & (result.start_s > result.start_s[job])
        assert (jobs.limit_s[waited] >= jobs.limit_s[job]).all()


@pytest.mark.parametrize("name", ORDERS)
@settings(deadline=None, max_examples=20)
@given(jobs=TRACES)
def test_the_same_question_has_the_same_answer(name: str, jobs: Jobs) -> None:
    first, second = (outcome(jobs, name, Shares()) for _ in range(2))
    assert np.array_equal(first.end_s, second.end_s)
    assert first.figures == second.figures


@settings(deadline=None, max_examples=50)
@given(jobs=TRACES)
def test_on_one_gpu_the_least_left_first_has_the_least_mean_completion_time(jobs: Jobs) -> None:
    """Schrage's theorem, where suspending costs nothing and run times are known."""
    fleet = replace(FLEET, types=(GpuType(name="old", gpu_count=1),))
    jobs = replace(jobs, gpu_count=np.ones_like(jobs.gpu_count))
    policy = OneGpu()
    means = {}
    for name in ("srtf", "sjf", "fifo", "las", "max-min"):
        ordering = Ordering(order=ORDERS[name](), predicted_s=jobs.work_s, preemption_s=0.0)
        means[name] = simulate_ordered(jobs, fleet, policy, Truth(), ordering).figures.jct_s
    assert means["srtf"] <= min(means.values()) * (1 + 1e-9)


class OneGpu(Shares):
    """Whole GPUs of the first type."""

    def demand(self, _: JobRequest) -> Demand:
        """Return one."""
        return Demand(types=(0,))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAlone(Order):
    """An order of which nobody knows how its ranks change."""

    order: Order
    name: str = "rank"
    preempts: bool = True

    def rank(self, job: QueuedJob, now_s: float, queue: Queue, /) -> float:
        """Return that of the order."""
        return self.order.rank(job, now_s, queue)


@pytest.mark.parametrize("name", ["srtf", "las", "max-min"])
@settings(deadline=None, max_examples=60)
@given(jobs=TRACES, shares=st.booleans())
def test_what_an_order_says_of_its_ranks_saves_time_and_changes_nothing(name: str, jobs: Jobs, shares: bool) -> None:
    order = ORDERS[name]()
    alone = RankAlone(order=order, period_s=order.period_s)
    plain = Ordering(order=alone, predicted_s=jobs.limit_s, preemption_s=PREEMPTION_S)
    expected = simulate_ordered(jobs, FLEET, Shares(shares=shares), Truth(), plain)
    result = outcome(jobs, name, Shares(shares=shares))
    assert np.array_equal(result.end_s, expected.end_s)
    assert result.figures == expected.figures


CLAIMS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.25, 1.0, 2.0, 4.0])), min_size=1, max_size=12)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.floats(0.01, 300))
def test_water_is_all_spent_and_rises_evenly(most: list[float], capacity: float) -> None:
    together = np.zeros(len(most), dtype=np.int32)
    shares = fill(np.array([capacity]), together, np.array(most))
    assert np.isclose(shares.sum(), min(capacity, sum(most)))
    level = shares.max()
    assert all(np.isclose(share, one) or np.isclose(share, level) for share, one in zip(shares, most, strict=True))


@given(st.lists(st.tuples(st.floats(0.01, 300), st.lists(st.floats(0.01, 100), min_size=1))))
def test_each_owner_s_water_rises_as_it_would_alone_poured_claim_by_claim(
    owners: list[tuple[float, list[float]]],
) -> None:
    """The smallest claims first, each has its part of what is left for it and those behind it."""
    rows = [(owner, most) for owner, (_, claims) in enumerate(owners) for most in claims]
    assume(rows)
    expected = {}
    for owner, (capacity, claims) in enumerate(owners):
        rest = capacity
        for place, most in enumerate(sorted(claims)):
            expected[owner, most] = min(most, rest / (len(claims) - place))
            rest -= expected[owner, most]
    of, most = (np.array(column) for column in zip(*rows, strict=True))
    shares = fill(np.array([capacity for capacity, _ in owners]), of, most)
    assert shares.tolist() == pytest.approx([expected[row] for row in rows], rel=1e-6, abs=1e-6)


@settings(deadline=None)
@given(CLAIMS, st.integers(1, 40))
def test_even_shares_keep_within_the_gpus_and_nobody_starves(rows: list[tuple[int, float]], gpu_count: int) -> None:
    users, gpus = (np.array(column) for column in zip(*rows, strict=True))
    parts = even_shares(users.astype(np.int32), gpus, gpu_count)
    assert ((parts > 0) & (parts <= 1 + 1e-9)).all()
    # Either every job runs all the time, or all GPUs are used.
    assert np.isclose(parts, 1).all() or np.isclose((parts * gpus).sum(), gpu_count)
