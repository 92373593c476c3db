"""The whole plan in parts, and within a time."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage_planning.capacity.decision import decide
from gpusage_planning.capacity.mixed_integer import Limits
from gpusage_planning.capacity.plan import least_cost
from gpusage_planning.capacity.problem import Choice, NodeGroup, NodeType, PlannedJob, State, node_types, options
from gpusage_planning.capacity.whole import RULES, Watch, by_rule, divided, whole_plan

OLD = NodeType(name="old", gpu="old", gpu_count=2, price_per_hour=2.0)
NEW = NodeType(name="new", gpu="new", gpu_count=1, price_per_hour=1.5)


def program(state: State) -> Choice:
    return decide(state, Limits())


def problem(job_count: int, *node_counts: int) -> tuple[list[PlannedJob], list[NodeGroup]]:
    """Return jobs of which every seventh can run on the new GPU alone."""
    jobs = [
        PlannedJob(
            name=f"job{number}",
            times_s={("new" if number % 7 == 0 else "old", 1): 600.0 + 60 * number % 1000},
            submitted_s=30.0 * number,
            deadline_s=1800.0 + 50.0 * number,
            late_price_per_hour=1.0 + number % 3,
        )
        for number in range(job_count)
    ]
    kinds = (OLD, NEW)
    return jobs, [
        NodeGroup(name=kind.name, node_count=own, types=(kind,)) for kind, own in zip(kinds, node_counts, strict=True)
    ]


@given(
    job_count=st.integers(1, 60),
    old_count=st.integers(1, 9),
    new_count=st.integers(1, 3),
    most_places=st.integers(1, 100),
)
def test_parts_have_each_job_and_node_once_and_each_job_can_run_in_its_part(
    job_count: int, old_count: int, new_count: int, most_places: int
) -> None:
    jobs, groups = problem(job_count, old_count, new_count)
    parts = divided(jobs, groups, most_places)
    assert Counter(job.name for part in parts for job in part.jobs) == Counter(job.name for job in jobs)
    nodes = Counter(name for part in parts for group in part.groups for name in group.node_names)
    assert nodes <= Counter(name for group in groups for name in group.node_names)
    assert all(options(job, node_types(part.groups)) for part in parts for job in part.jobs)


def test_parts_have_as_much_to_do_as_each_other() -> None:
    jobs, groups = problem(400, 8, 8)
    parts = divided(jobs, groups, 400 * 16 // 16)
    assert len(parts) == 4
    assert [[group.node_count for group in part.groups] for part in parts] == [[2, 2]] * 4
    works_s = [sum(min(job.times_s.values()) for job in part.jobs) for part in parts]
    assert max(works_s) < 1.02 * min(works_s)


def test_a_problem_in_parts_is_a_whole_plan_no_dearer_than_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpusage_planning.capacity.whole.divided", lambda jobs, groups: divided(jobs, groups, 40))
    jobs, groups = problem(20, 4, 2)
    assert len(divided(jobs, groups, 40)) > 1
    plan, others = whole_plan(jobs, groups, program, Watch())
    assert sorted(each.job.name for each in plan.assignments) == sorted(job.name for job in jobs)
    assert set(others) == {*RULES, "program"}
    assert plan.cost <= min(each.cost for each in others.values())
    assert plan.bound == pytest.approx(least_cost(jobs, groups))


def test_without_time_the_plan_is_that_of_the_best_rule() -> None:
    jobs, groups = problem(12, 2, 1)
    plan, others = whole_plan(jobs, groups, program, Watch(spent=lambda: 1.0))
    assert plan.cost == min(others[name].cost for name in RULES)
    assert others["program"].cost == others["earliest deadline"].cost


def test_where_the_time_is_over_midway_the_plan_is_whole_and_no_dearer_than_a_rule() -> None:
    jobs, groups = problem(30, 2, 1)
    clock = count()
    plan, others = whole_plan(jobs, groups, program, Watch(spent=lambda: next(clock) / 40))
    assert len(plan.assignments) == len(jobs)
    assert plan.cost <= min(others[name].cost for name in RULES)


def test_what_is_done_grows_to_all() -> None:
    jobs, groups = problem(8, 2, 1)
    done: list[float] = []
    whole_plan(jobs, groups, by_rule(RULES["first come"]), Watch(report=done.append))
    assert done == sorted(done)
    assert 0.0 < done[0] < done[-1] <= 1.0
