"""Small problems whose whole plan is plain, and that no choice event by event solves."""

from __future__ import annotations

import pytest

from gpusage_planning.capacity.plan import Plan, make_plan
from gpusage_planning.capacity.problem import NodeGroup, NodeType, PlannedJob
from gpusage_planning.capacity.search import best_plan
from gpusage_planning.capacity.whole import RULES, by_rule

PAIR = NodeType(name="pair", gpu="old", gpu_count=2, price_per_hour=2.0)
SINGLE = NodeType(name="single", gpu="old", gpu_count=1, price_per_hour=1.5)


def job(name: str, hours: float, **more: float) -> PlannedJob:
    return PlannedJob(name=name, times_s={("old", 1): hours * 3600}, **more)


def first_come(jobs: list[PlannedJob], group: NodeGroup) -> Plan:
    return make_plan(jobs, [group], by_rule(RULES["first come"]))


def test_a_job_waits_for_one_that_comes_later_where_a_shared_node_is_cheaper() -> None:
    group = NodeGroup(name="n", node_count=1, types=(PAIR,))
    jobs = [job("a", 1.0), job("b", 1.0, submitted_s=1800.0)]
    start = first_come(jobs, group)
    plan = best_plan(jobs, [group], [start])
    assert start.cost == pytest.approx(3.0)  # one and a half hours at 2
    assert plan.cost == pytest.approx(2.0)
    assert [each.start_s for each in plan.assignments] == [1800.0, 1800.0]


def test_two_jobs_move_together_to_a_node_that_is_cheaper_for_both() -> None:
    """Neither would go there alone: half an hour of a pair costs 1.0, of a single node 0.75."""
    group = NodeGroup(name="n", node_count=2, types=(SINGLE, PAIR))
    jobs = [job("a", 0.5), job("b", 0.5)]
    singles = make_plan(jobs, [NodeGroup(name="n", node_count=2, types=(SINGLE,))], by_rule(RULES["first come"]))
    plan = best_plan(jobs, [group], [singles])
    assert (singles.cost, plan.cost) == (pytest.approx(1.5), pytest.approx(1.0))
    assert [each.option.type for each in plan.assignments] == [PAIR, PAIR]


def test_a_node_is_one_type_at_a_time() -> None:
    group = NodeGroup(name="n", node_count=1, types=(SINGLE, PAIR))
    jobs = [
        job(name, hours, deadline_s=hours * 3600, late_price_per_hour=9.0) for name, hours in (("a", 1), ("b", 0.25))
    ]
    plan = best_plan(jobs, [group], [first_come(jobs, group)])
    assert plan.cost == pytest.approx(2.0)  # both at once need the pair; on two singles they would cost 1.875


def test_of_plans_that_cost_the_same_the_earlier_one_is_made() -> None:
    group = NodeGroup(name="n", node_count=2, types=(SINGLE,))
    jobs = [job("a", 1.0, submitted_s=100.0), job("b", 1.0)]
    plan = best_plan(jobs, [group], [first_come(jobs, group)])
    assert {each.job.name: each.start_s for each in plan.assignments} == {"a": 100.0, "b": 0.0}


def test_without_tries_the_cheapest_start_is_the_plan() -> None:
    group = NodeGroup(name="n", node_count=1, types=(PAIR,))
    jobs = [job("a", 1.0), job("b", 1.0, submitted_s=1800.0)]
    start = first_come(jobs, group)
    assert best_plan(jobs, [group], [start], most_tries=0) is start


def test_no_jobs_make_an_empty_plan() -> None:
    group = NodeGroup(name="n", node_count=1, types=(PAIR,))
    assert best_plan([], [group], [first_come([], group)]).assignments == ()
