"""What a node's bill is, and when it is on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpusage_planning.capacity.plan import Plan, least_cost, make_plan
from gpusage_planning.capacity.problem import NodeGroup, NodeType, PlannedJob, options
from gpusage_planning.capacity.search import best_plan
from gpusage_planning.capacity.whole import RULES, by_rule

SINGLE = NodeType(name="single", gpu="old", gpu_count=1, price_per_hour=6.0)
NEW = NodeType(name="new", gpu="new", gpu_count=1, price_per_hour=6.0)


def job(name: str, minutes: float, gpu: str = "old", **more: float) -> PlannedJob:
    return PlannedJob(name=name, times_s={(gpu, 1): minutes * 60}, **more)


def best(jobs: list[PlannedJob], *types: NodeType, node_count: int = 1) -> Plan:
    group = NodeGroup(name="n", node_count=node_count, types=types)
    return best_plan(jobs, [group], [make_plan(jobs, [group], by_rule(order)) for order in RULES.values()])


def on_minutes(plan: Plan) -> list[tuple[float, float]]:
    return [(each.start_s / 60, each.end_s / 60) for each in plan.active]


@pytest.mark.parametrize(
    ("on_s", "minimum_s", "step_s", "billed_s"),
    [
        (100.0, 0.0, 0.0, 100.0),
        (100.0, 3600.0, 0.0, 3600.0),
        (3601.0, 3600.0, 0.0, 3601.0),
        (61.0, 0.0, 60.0, 120.0),
        (60.0 + 1e-9, 0.0, 60.0, 60.0),
        (10.0, 90.0, 60.0, 120.0),
    ],
)
def test_a_bill_is_for_at_least_the_minimum_and_in_whole_steps(
    on_s: float, minimum_s: float, step_s: float, billed_s: float
) -> None:
    kind = replace(SINGLE, minimum_billing_s=minimum_s, billing_step_s=step_s)
    assert kind.billed_s(on_s) == billed_s
    assert kind.cost(on_s) == pytest.approx(billed_s / 600)


def test_a_job_starts_when_its_node_has_booted_and_the_boot_is_paid() -> None:
    plan = best([job("a", 30)], replace(SINGLE, boot_s=600.0))
    assert (plan.assignments[0].start_s, on_minutes(plan)) == (600.0, [(0, 40)])
    assert (plan.cost, plan.boot_cost) == (pytest.approx(4.0), pytest.approx(1.0))
    assert plan.gap == pytest.approx(0.0)


def test_a_node_boots_before_a_job_that_is_known_to_come() -> None:
    plan = best([job("a", 30, submitted_s=3600.0)], replace(SINGLE, boot_s=600.0))
    assert (plan.assignments[0].start_s, plan.late_cost) == (3600.0, 0.0)
    assert on_minutes(plan) == [(50, 90)]


@pytest.mark.parametrize(("break_minutes", "on"), [(15, [(0, 55)]), (25, [(0, 30), (35, 65)])])
def test_between_two_jobs_a_node_stays_on_where_a_boot_costs_more(
    break_minutes: float, on: list[tuple[float, float]]
) -> None:
    """A boot takes 20 minutes: a shorter break costs less than it, a longer one more. The first job has a deadline."""
    jobs = [
        job("a", 10, deadline_s=1800.0, late_price_per_hour=99.0),
        job("b", 10, submitted_s=(30 + break_minutes) * 60),
    ]
    assert on_minutes(best(jobs, replace(SINGLE, boot_s=1200.0))) == on


def test_a_second_job_is_free_within_the_time_that_is_billed_anyway() -> None:
    jobs = [job("a", 10), job("b", 10, submitted_s=1800.0, deadline_s=3000.0, late_price_per_hour=9.0)]
    plan = best(jobs, replace(SINGLE, minimum_billing_s=3600.0), node_count=2)
    assert len(plan.active) == 1
    assert (plan.cost, plan.unused_cost) == (pytest.approx(6.0), pytest.approx(2.0))  # one hour, of it 20 min unused


def test_a_node_that_becomes_another_type_boots_in_between() -> None:
    jobs = [job("a", 10), job("b", 10, "new")]
    plan = best(jobs, replace(SINGLE, boot_s=300.0), replace(NEW, boot_s=600.0))
    (first, second) = sorted(plan.active, key=lambda each: each.start_s)
    assert second.start_s >= first.end_s
    assert plan.cost == pytest.approx(3.5)  # 15 and 20 minutes


def test_no_plan_undercuts_a_whole_bill_or_the_lateness_of_a_boot() -> None:
    kind = replace(SINGLE, boot_s=600.0, minimum_billing_s=7200.0)
    group = NodeGroup(name="n", node_count=1, types=(kind,))
    assert least_cost([job("a", 10)], [group]) == pytest.approx(12.0)
    late = job("a", 10, deadline_s=600.0, late_price_per_hour=6.0)
    assert least_cost([late], [group]) == pytest.approx(13.0)  # it ends after 20 min, 10 late


def test_a_job_that_would_not_end_in_time_does_not_run_on_a_node_that_will_be_gone() -> None:
    cheap = NodeGroup(name="gone", node_count=1, types=(replace(SINGLE, price_per_hour=1.0, until_s=3600.0),))
    groups = [cheap, NodeGroup(name="n", node_count=1, types=(SINGLE,))]
    jobs = [job("short", 50), job("long", 70)]
    plan = best_plan(jobs, groups, [make_plan(jobs, groups, by_rule(order)) for order in RULES.values()])
    assert {each.job.name: each.node for each in plan.assignments} == {"short": "gone-1", "long": "n-1"}
    assert plan.bound == pytest.approx(50 / 60 + 7.0)


@pytest.mark.parametrize(
    ("checkpoint_s", "expected_s"),
    [
        (float("inf"), (math.e - 1) * 3600),  # one interruption an hour, an hour of work
        (3600.0, (math.e - 1) * 3600),
        (36.0, 100 * math.expm1(0.01) * 3600),
        (0.001, 3600.0018),
    ],
)
def test_interruptions_cost_the_work_since_the_last_checkpoint(checkpoint_s: float, expected_s: float) -> None:
    kind = replace(SINGLE, interruptions_per_hour=1.0)
    assert kind.expected_s(3600.0, checkpoint_s) == pytest.approx(expected_s)


def test_each_interruption_costs_a_boot() -> None:
    kind = replace(SINGLE, interruptions_per_hour=1.0, boot_s=360.0)
    assert kind.expected_s(3600.0, 1.0) == pytest.approx(3600.0 * 1.1, rel=1e-3)


def test_a_job_that_would_hardly_end_does_not_run_on_a_spot_node() -> None:
    kind = replace(SINGLE, interruptions_per_hour=1.0)
    assert options(job("a", 30 * 60), [kind]) == ()
    assert len(options(job("a", 30 * 60, checkpoint_s=600.0), [kind])) == 1


@pytest.mark.parametrize(("interruptions_per_hour", "name"), [(0.1, "spot"), (2.0, "single")])
def test_a_spot_node_is_used_where_its_risk_is_worth_its_price(interruptions_per_hour: float, name: str) -> None:
    spot = replace(SINGLE, name="spot", price_per_hour=3.0, interruptions_per_hour=interruptions_per_hour)
    plan = best([job("a", 60)], SINGLE, spot)
    assert [each.type.name for each in plan.active] == [name]
