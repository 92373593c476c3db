"""Whatever is to be planned: every job runs once, no GPU is used twice, and the cost is that of its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusage_hooks.units import HOUR_S
from gpusage_planning.capacity.decision import decide
from gpusage_planning.capacity.mixed_integer import Limits
from gpusage_planning.capacity.plan import Active, Plan, make_plan
from gpusage_planning.capacity.problem import TOLERANCE_S, Choice, NodeGroup, NodeType, PlannedJob, State
from gpusage_planning.capacity.search import best_plan
from gpusage_planning.capacity.whole import RULES, by_rule

GPUS = ("old", "new")
TYPES = st.builds(
    NodeType,
    name=st.sampled_from(("a", "b", "c", "d")),
    gpu=st.sampled_from(GPUS),
    gpu_count=st.integers(1, 6),
    price_per_hour=st.floats(0.0, 10.0),
    boot_s=st.sampled_from((0.0, 60.0, 600.0)),
    minimum_billing_s=st.sampled_from((0.0, 1800.0)),
    billing_step_s=st.sampled_from((0.0, 60.0, 3600.0)),
    interruptions_per_hour=st.sampled_from((0.0, 0.5)),
)
COUNTS = (1, 2, 4)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[PlannedJob], list[NodeGroup]]:
    """Return jobs and nodes; each job can run on one GPU of either kind."""
    types = draw(st.lists(TYPES, min_size=1, max_size=4, unique_by=lambda kind: kind.name))
    groups = [
        NodeGroup(name=f"group{number}", node_count=draw(st.integers(1, 3)), types=tuple(types[number:]))
        for number in range(min(len(types), draw(st.integers(1, 2))))
    ]
    until_s = draw(st.sampled_from((0.0, 3000.0, 10_000.0)))
    if until_s:  # more nodes, which are gone then
        gone = tuple(replace(kind, until_s=until_s) for kind in types)
        groups.append(NodeGroup(name="gone", node_count=draw(st.integers(1, 3)), types=gone))
    jobs = []
    for number in range(draw(st.integers(1, 8))):
        submitted_s = draw(st.floats(0.0, 2000.0))
        base_s = draw(st.floats(1.0, 5000.0))
        late_s = draw(st.none() | st.floats(1.0, 5000.0))
        jobs.append(
            PlannedJob(
                name=f"job{number}",
                times_s={(gpu, count): base_s / count for gpu in GPUS for count in COUNTS},
                submitted_s=submitted_s,
                deadline_s=None if late_s is None else submitted_s + late_s,
                late_price_per_hour=draw(st.floats(0.0, 10.0)),
                priority=draw(st.floats(0.0, 3.0)),
                checkpoint_s=draw(st.sampled_from((600.0, float("inf")))),
            )
        )
    return jobs, groups


def program(state: State) -> Choice:
    return decide(state, Limits())


CHOOSERS = {"program": program, **{name: by_rule(order) for name, order in RULES.items()}}


@pytest.mark.parametrize("name", CHOOSERS)
@given(problem=problems())
@settings(max_examples=25, deadline=None)
def test_a_plan_holds(name: str, problem: tuple[list[PlannedJob], list[NodeGroup]]) -> None:
    jobs, groups = problem
    _assert_valid_plan(make_plan(jobs, groups, _chooser(name)), jobs, groups)


def _assert_valid_plan(plan: Plan, jobs: list[PlannedJob], groups: list[NodeGroup]) -> None:
    assert sorted(each.job.name for each in plan.assignments) == sorted(job.name for job in jobs)
    assert all(each.start_s >= each.job.submitted_s for each in plan.assignments)
    assert all(each.end_s <= each.option.type.until_s for each in plan.assignments)
    _no_gpu_is_used_twice(plan)
    _nodes_are_on_and_one_thing_at_a_time(plan, groups)
    assert plan.cost == pytest.approx(_cost(plan))
    assert plan.bound <= plan.cost * (1 + 1e-9) + 1e-9


@given(problem=problems())
@settings(max_examples=25, deadline=None)
def test_the_whole_plan_holds_and_is_never_dearer_than_a_rule_or_the_program(
    problem: tuple[list[PlannedJob], list[NodeGroup]],
) -> None:
    jobs, groups = problem
    starts = [make_plan(jobs, groups, choose) for choose in CHOOSERS.values()]
    plan = best_plan(jobs, groups, starts, most_tries=20_000)
    assert plan.cost <= min(start.cost for start in starts)
    _assert_valid_plan(plan, jobs, groups)


def _chooser(name: str) -> Callable[[State], Choice]:
    return CHOOSERS[name]


def _no_gpu_is_used_twice(plan: Plan) -> None:
    for each in plan.assignments:
        here = [other for other in plan.assignments if other.node == each.node]
        moment_s = each.start_s + TOLERANCE_S  # an end and the start after it may differ in the last digit
        used = sum(other.option.gpu_count for other in here if other.start_s <= moment_s < other.end_s)
        assert used <= each.option.type.gpu_count


def _nodes_are_on_and_one_thing_at_a_time(plan: Plan, groups: list[NodeGroup]) -> None:
    names = {f"{group.name}-{number}" for group in groups for number in range(1, group.node_count + 1)}
    assert {each.node for each in plan.active} <= names
    for each in plan.assignments:
        assert any(
            on.node == each.node
            and on.type == each.option.type
            and on.start_s + on.type.boot_s <= each.start_s + 1e-6
            and each.end_s <= on.end_s
            for on in plan.active
        )
    for node in names:
        times = sorted((on.start_s, on.end_s) for on in plan.active if on.node == node)
        assert all(first[1] <= second[0] + 1e-6 for first, second in pairwise([(0.0, 0.0), *times]))


def _cost(plan: Plan) -> float:
    nodes = sum(_billed_s(on) * on.type.price_per_hour for on in plan.active)
    late = sum(
        max(each.end_s - each.job.deadline_s, 0.0) * each.job.late_price_per_hour
        for each in plan.assignments
        if each.job.deadline_s is not None
    )
    return (nodes + late) / HOUR_S


def _billed_s(on: Active) -> float:
    """Return what is billed, by its rule in words: at least so long, in whole steps."""
    billed_s = max(on.end_s - on.start_s, on.type.minimum_billing_s)
    step_s = on.type.billing_step_s
    return step_s * next(count for count in range(10**6) if step_s * count >= billed_s - 1e-6) if step_s else billed_s
