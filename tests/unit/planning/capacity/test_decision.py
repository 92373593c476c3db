"""Small problems whose best plan is plain."""

from __future__ import annotations

import pytest

from gpusage_planning.capacity.decision import decide
from gpusage_planning.capacity.mixed_integer import Limits
from gpusage_planning.capacity.plan import Plan, make_plan
from gpusage_planning.capacity.problem import NodeGroup, NodeType, PlannedJob

CHEAP = NodeType(name="cheap", gpu="old", gpu_count=1, price_per_hour=1.0)
DEAR = NodeType(name="dear", gpu="new", gpu_count=1, price_per_hour=3.0)


def planned(jobs: list[PlannedJob], *groups: NodeGroup) -> Plan:
    return make_plan(jobs, groups, lambda state: decide(state, Limits()))


def job(name: str, hours: float, **more: float) -> PlannedJob:
    """Return a job that takes *hours* on the old GPU and half as long on the new one."""
    return PlannedJob(name=name, times_s={("old", 1): hours * 3600, ("new", 1): hours * 1800}, **more)


def test_a_job_with_time_goes_where_it_is_cheapest() -> None:
    plan = planned([job("a", 2.0)], NodeGroup(name="n", node_count=1, types=(CHEAP, DEAR)))
    assert [each.option.type for each in plan.assignments] == [CHEAP]
    assert plan.cost == pytest.approx(2.0)  # two hours at 1; the new GPU: one hour at 3


def test_a_job_in_a_hurry_goes_where_it_is_fast() -> None:
    hurried = job("a", 2.0, deadline_s=3600.0, late_price_per_hour=5.0)
    plan = planned([hurried], NodeGroup(name="n", node_count=1, types=(CHEAP, DEAR)))
    assert [each.option.type for each in plan.assignments] == [DEAR]
    assert plan.cost == pytest.approx(3.0)  # one hour at 3; the old GPU: 2 and one hour late at 5


def test_of_two_jobs_the_one_whose_lateness_is_dear_goes_first() -> None:
    patient = job("patient", 1.0, deadline_s=3600.0, late_price_per_hour=0.1)
    urgent = job("urgent", 1.0, deadline_s=3600.0, late_price_per_hour=9.0)
    plan = planned([patient, urgent], NodeGroup(name="n", node_count=1, types=(CHEAP,)))
    assert [each.job.name for each in plan.assignments] == ["urgent", "patient"]
    assert plan.late_cost == pytest.approx(0.1)


def test_a_plan_has_the_gap_to_a_bound_of_the_whole_plan() -> None:
    plan = planned([job("a", 1.0), job("b", 1.0)], NodeGroup(name="n", node_count=1, types=(CHEAP,)))
    assert (plan.bound, plan.cost) == (pytest.approx(2.0), pytest.approx(2.0))
    assert plan.gap == pytest.approx(0.0)


def test_a_node_that_one_job_needs_is_paid_whole_in_the_bound() -> None:
    large = NodeType(name="large", gpu="old", gpu_count=4, price_per_hour=4.0)
    plan = planned([job("a", 3.0), job("b", 1.0)], NodeGroup(name="n", node_count=1, types=(large,)))
    assert plan.bound == pytest.approx(12.0)  # three hours at 4; the GPUs alone: 3 + 1
    assert plan.gap == pytest.approx(0.0)


def test_where_nothing_is_known_of_the_best_plan_there_is_no_gap() -> None:
    free = NodeType(name="free", gpu="old", gpu_count=1, price_per_hour=0.0)
    assert planned([job("a", 1.0)], NodeGroup(name="n", node_count=1, types=(free,))).gap is None


def test_no_jobs_make_an_empty_plan() -> None:
    plan = planned([], NodeGroup(name="n", node_count=1, types=(CHEAP,)))
    assert (plan.assignments, plan.cost, plan.end_s) == ((), 0.0, 0.0)


def test_without_time_for_a_solution_the_earliest_deadline_goes_first() -> None:
    group = NodeGroup(name="n", node_count=1, types=(CHEAP,))
    jobs = [job("late", 1.0, deadline_s=9000.0), job("early", 1.0, deadline_s=4000.0)]
    plan = make_plan(jobs, [group], lambda state: decide(state, Limits(time_s=0.0)))
    assert [each.job.name for each in plan.assignments] == ["early", "late"]
