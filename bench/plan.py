"""How long `gpusage plan` takes and how good its plans are: 100 jobs on 20 nodes, and 1,000 on 200.

The jobs are random (seeded): 10 min to 4 h on one K80, on up to four GPUs, with deadlines that not all can be met. All
are there at once, which is the hardest case. With ``--exact``, plans of 4 to 6 jobs on 2 or 3 nodes are compared with
the optimum, or with a bound below it where it is not proven in time; with ``--billing`` as well, nodes take 3 min to
boot, and are billed for at least an hour.

Example: python bench/plan.py --json
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import click

from gpusage.cli import tables
from gpusage_planning.capacity.decision import decide
from gpusage_planning.capacity.mixed_integer import Limits
from gpusage_planning.capacity.plan import Plan
from gpusage_planning.capacity.problem import NodeGroup, NodeType, PlannedJob
from gpusage_planning.capacity.whole import RULES, Watch, whole_plan

SIZES = ((100, 20, 10.0), (1000, 200, 60.0))
LARGE = (20_000, 2000, 600.0)
"""Jobs, nodes, and the seconds that the whole plan may take."""
INSTANCES, BILLING_INSTANCES = 32, 12
BOOT_S, MINIMUM_BILLING_S = 180.0, 3600.0
"""Of every type with ``--billing``."""
EXACT_LIMIT_S = 120.0
ARRIVALS_S = (0, 300, 1800)
"""Mean times between the jobs of a small problem."""
PLAN, RULE, PROGRAM = "plan dearer, %", "best rule dearer, %", "program dearer, %"
EFFICIENCY = {1: 1.0, 2: 0.9, 4: 0.75}
TYPES = tuple(
    NodeType(name=name, gpu=gpu, gpu_count=count, price_per_hour=price)
    for name, gpu, count, price in (
        *(("NC6", "k80", 1, 0.56), ("NC12", "k80", 2, 1.13), ("NC24", "k80", 4, 2.25)),
        *(("NV6", "m60", 1, 0.62), ("NV12", "m60", 2, 1.24), ("NV24", "m60", 4, 2.48)),
    )
)
"""Ardagna et al.'s table of virtual machines."""


@click.command()
@click.option("--exact", is_flag=True, help="Compare small plans with the optimum that CP-SAT proves.")
@click.option("--billing", is_flag=True, help="With --exact: nodes boot, and are billed for at least an hour.")
@click.option("--large", is_flag=True, help="Plan 20,000 jobs on 2,000 nodes as well: minutes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(*, exact: bool, billing: bool, large: bool, as_json: bool) -> None:
    """Plan each size, and print how long it took, the gap, and what the plain rules cost."""
    types = TYPES
    if billing:
        types = tuple(replace(kind, boot_s=BOOT_S, minimum_billing_s=MINIMUM_BILLING_S) for kind in TYPES)
    if exact:
        rows = [compared(number, types) for number in range(BILLING_INSTANCES if billing else INSTANCES)]
    else:
        rows = [measured(*size) for size in (*SIZES, *([LARGE] if large else []))]
    summary = _summary(rows) if exact else {}
    if as_json:
        tables.print_json({"schema": "gpusage.bench/1", "plan": rows, **summary})
        return
    columns = [tables.Column(name, is_left=index == 0) for index, name in enumerate(rows[0])]
    tables.show_rows(columns, [[f"{value:.4g}" for value in row.values()] for row in rows])
    for name, figures in summary.items():
        tables.show(f"{name}: mean {figures['mean']:.2f} %, worst {figures['worst']:.2f} %")


def measured(job_count: int, node_count: int, limit_s: float) -> dict[str, float]:
    """Return what one plan took and costs."""
    jobs = random_jobs(job_count)
    groups = [NodeGroup(name="cloud", node_count=node_count, types=TYPES)]
    start_s = time.process_time()
    plan, starts = planned(jobs, groups)
    return {
        "jobs": job_count,
        "nodes": node_count,
        "processor s": time.process_time() - start_s,
        "limit, s": limit_s,
        "cost": plan.cost,
        "bound": plan.bound,
        "gap, %": 100.0 * (plan.gap or 0.0),
        **{name: start.cost for name, start in starts.items()},
    }


def planned(jobs: Sequence[PlannedJob], groups: Sequence[NodeGroup]) -> tuple[Plan, Mapping[str, Plan]]:
    """Return the plan as `gpusage plan` makes it, and those that it starts from."""
    return whole_plan(jobs, groups, lambda state: decide(state, Limits()), Watch())


def compared(number: int, types: Sequence[NodeType]) -> dict[str, float]:
    """Return how much dearer than the optimum a small problem's plan is, in percent, and what it starts from."""
    from plan_exact import least_cost  # OR-Tools, of the extra [test]

    jobs, groups = small_problem(number, types)
    plan, starts = planned(jobs, groups)
    optimum, is_proven = least_cost(jobs, groups, plan.cost, EXACT_LIMIT_S)
    return {
        "instance": number,
        "jobs": len(jobs),
        "nodes": groups[0].node_count,
        "optimum": optimum,
        "proven": is_proven,
        PLAN: round(100.0 * (plan.cost / optimum - 1.0), 6) + 0.0,
        RULE: round(100.0 * (min(starts[name].cost for name in RULES) / optimum - 1.0), 6) + 0.0,
        PROGRAM: round(100.0 * (starts["program"].cost / optimum - 1.0), 6) + 0.0,
    }


def _summary(rows: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    shares = {name: [row[name] for row in rows] for name in (PLAN, RULE, PROGRAM)}
    return {name: {"mean": sum(own) / len(own), "worst": max(own)} for name, own in shares.items()}


def small_problem(number: int, types: Sequence[NodeType] = TYPES) -> tuple[list[PlannedJob], list[NodeGroup]]:
    """Return four to six jobs that come at once or one after the other, and two or three nodes."""
    chance = random.Random(f"exact {number}")  # a seed, no secret
    job_count, node_count = chance.randint(4, 6), chance.randint(2, 3)
    between_s, submitted_s, jobs = chance.choice(ARRIVALS_S), 0, []
    for place in range(job_count):
        job = _job(place, chance)
        times_s = {key: float(round(time_s)) for key, time_s in job.times_s.items()}
        job = replace(job, times_s=times_s, late_price_per_hour=round(job.late_price_per_hour, 2))
        deadline_s = float(submitted_s + round(job.latest_end_s))
        jobs.append(replace(job, submitted_s=float(submitted_s), deadline_s=deadline_s))
        submitted_s += round(chance.expovariate(1.0 / between_s)) if between_s else 0
    return jobs, [NodeGroup(name="cloud", node_count=node_count, types=tuple(types))]


def random_jobs(count: int) -> list[PlannedJob]:
    """Return seeded jobs."""
    chance = random.Random(1)  # a seed, no secret
    return [_job(number, chance) for number in range(count)]


def _job(number: int, chance: random.Random) -> PlannedJob:
    base_s = chance.uniform(600.0, 14400.0)
    ratios = {"k80": 1.0, "m60": chance.uniform(0.6, 1.2)}
    times_s = {
        (gpu, gpus): base_s * ratio / (gpus * efficiency)
        for gpu, ratio in ratios.items()
        for gpus, efficiency in EFFICIENCY.items()
    }
    return PlannedJob(
        name=f"job{number}",
        times_s=times_s,
        deadline_s=base_s * chance.uniform(0.5, 3.0),
        late_price_per_hour=chance.uniform(0.5, 5.0),
        priority=chance.random(),
    )


if __name__ == "__main__":
    main()
