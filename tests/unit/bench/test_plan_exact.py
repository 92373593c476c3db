"""`bench/plan_exact.py`: the optimum that small plans are compared with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpusage_planning.capacity.plan import make_plan
from gpusage_planning.capacity.problem import NodeGroup, NodeType, PlannedJob
from gpusage_planning.capacity.search import best_plan
from gpusage_planning.capacity.whole import RULES, by_rule

sys.path.append(str(Path(__file__).parents[3] / "bench"))

from plan import small_problem
from plan_exact import least_cost

PAIR = NodeType(name="pair", gpu="old", gpu_count=2, price_per_hour=2.0)


def test_a_shared_node_is_worth_waiting_for() -> None:
    group = NodeGroup(name="n", node_count=1, types=(PAIR,))
    jobs = [
        PlannedJob(name="a", times_s={("old", 1): 3600.0}),
        PlannedJob(name="b", times_s={("old", 1): 3600.0}, submitted_s=1800.0),
    ]
    assert least_cost(jobs, [group], 9.0, 60.0) == (pytest.approx(2.0), True)  # both from 1800 s on, one hour at 2


def test_lateness_is_paid_where_that_is_cheaper() -> None:
    single = NodeType(name="single", gpu="old", gpu_count=1, price_per_hour=1.0)
    jobs = [
        PlannedJob(name=name, times_s={("old", 1): 3600.0}, deadline_s=3600.0, late_price_per_hour=price)
        for name, price in (("patient", 0.5), ("urgent", 9.0))
    ]
    group = NodeGroup(name="n", node_count=1, types=(single,))
    assert least_cost(jobs, [group], 9.0, 60.0) == (pytest.approx(2.5), True)  # two hours, and one of lateness


def test_a_plan_of_four_jobs_is_at_most_8_percent_dearer_than_the_optimum() -> None:
    jobs, groups = next(
        (jobs, groups) for jobs, groups in map(small_problem, range(100)) if (len(jobs), groups[0].node_count) == (4, 2)
    )
    plan = best_plan(jobs, groups, [make_plan(jobs, groups, by_rule(order)) for order in RULES.values()])
    optimum, is_proven = least_cost(jobs, groups, plan.cost, 300.0)
    assert is_proven
    assert optimum * (1 - 1e-6) <= plan.cost <= optimum * 1.08
