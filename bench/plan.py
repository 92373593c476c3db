"""How long `gpusage plan` takes and how good its plans are: 100 jobs on 20 nodes, and 1,000 on 200.

The jobs are random (seeded): 10 min to 4 h on one K80, on up to four GPUs, with deadlines that not all can be met. All
are there at once, which is the hardest case.

Example: python bench/plan.py --large
"""

from __future__ import annotations

import random
import time

import click

from gpusage.cli import tables
from gpusage_planning.capacity.decision import decide
from gpusage_planning.capacity.mixed_integer import Limits
from gpusage_planning.capacity.problem import NodeGroup, NodeType, PlannedJob
from gpusage_planning.capacity.whole import Watch, whole_plan

SIZES = ((100, 20, 10.0), (1000, 200, 60.0))
LARGE = (20_000, 2000, 600.0)
"""Jobs, nodes, and the seconds that the whole plan may take."""
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
@click.option("--large", is_flag=True, help="Plan 20,000 jobs on 2,000 nodes as well: minutes.")
def main(*, large: bool) -> None:
    """Plan each size, and print how long it took, the gap, and what the plain rules cost."""
    rows = [measured(*size) for size in (*SIZES, *([LARGE] if large else []))]
    columns = tables.columns(*rows[0])
    tables.show_rows(columns, [[f"{value:.4g}" for value in row.values()] for row in rows])


def measured(job_count: int, node_count: int, limit_s: float) -> dict[str, float]:
    """Return what one plan took and costs."""
    jobs = random_jobs(job_count)
    groups = [NodeGroup(name="cloud", node_count=node_count, types=TYPES)]
    start_s = time.process_time()
    plan, starts = whole_plan(jobs, groups, lambda state: decide(state, Limits()), Watch())
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
