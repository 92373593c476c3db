"""How fast the simulator is: 10,000, 100,000 and 1,000,000 jobs on a hundredth as many GPUs in nodes, time and memory.

Each size runs in a process of its own. Seconds are of the processor, so that another's load does not count.

Examples:
  python bench/simulator.py --largest 100000
  python bench/simulator.py --one slots+sjf 10000 1.3
  python bench/simulator.py --one slots+max-min 10000 2 --user-each    # each job has a user of its own
  python bench/simulator.py --against ../clones    # folders gavel and Lucid: orders beside Lucid's own simulator
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from gpusage.cli.cluster_file import parse_cluster
from gpusage.decisions.advisor import make_advisor
from gpusage_planning.simulator.engine import simulate
from gpusage_planning.simulator.fleet import fleet_of, with_nodes
from gpusage_planning.simulator.predictions import draw_kinds
from gpusage_planning.simulator.rounds import simulate_ordered
from gpusage_planning.simulator.scenario import POLICIES, scenario_of
from gpusage_planning.simulator.source import generated
from gpusage_planning.simulator.sweep import OrderSettings, ordering_of
from simulating import lucid

SIZES = (10_000, 100_000, 1_000_000)
NAMES = ("slots", "price", "packing", "sets")
JOBS_PER_GPU = 100
LOADS = (0.9, 1.3)
"""Of what the GPUs can do: below it few jobs wait, above it thousands do."""
GOAL_S, GOAL_MIB = 90.0, 500.0
GPUS_PER_NODE = 5
"""Divides the GPUs of every size; the drawn jobs ask for one, two, four or eight."""
MIB_PER_KIB = 1 / 1024


def measure(name: str, count: int, load: float, *, has_user_each: bool = False) -> dict[str, float]:
    """Return seconds and memory of one simulation in this process, of a policy or of one in an order (slots+sjf)."""
    advisor = make_advisor()
    pools = [{"site_type": name, "gpu_count": count // JOBS_PER_GPU // 4} for name in ("t4", "v100", "a100", "h100")]
    fleet = fleet_of(parse_cluster({"pools": pools}, "bench", advisor.catalogue, origin="bench"), advisor.catalogue)
    fleet = with_nodes(fleet, GPUS_PER_NODE)
    jobs = generated(count, draw_kinds(), fleet, 0, load)
    if has_user_each:
        jobs = replace(jobs, user=np.arange(count, dtype=jobs.user.dtype), users=tuple(map(str, range(count))))
    scenario = scenario_of(jobs, fleet, advisor, folder=Path(), seed=0)
    started_s, wall_s = time.process_time(), time.monotonic()
    policy_name, _, order_name = name.partition("+")
    policy = POLICIES[policy_name](scenario)
    if order_name:
        ordering = ordering_of(OrderSettings(name=order_name), scenario, 0)
        result = simulate_ordered(jobs, fleet, policy, scenario.truth, ordering)
    else:
        result = simulate(jobs, fleet, policy, scenario.truth)
    return {
        "cpu_s": time.process_time() - started_s,
        "wall_s": time.monotonic() - wall_s,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MIB_PER_KIB,
        "ended": int((~np.isnan(result.end_s)).sum()),
    }


@click.command()
@click.option("--largest", type=int, default=SIZES[1], show_default=True, help="Jobs; the goal is for 1000000.")
@click.option("--against", type=click.Path(exists=True, path_type=Path), help="Folder of clones of Gavel and Lucid.")
@click.option("--one", nargs=3, hidden=True)
@click.option("--user-each", "has_user_each", is_flag=True, hidden=True)
def main(
    largest: int,
    against: Path | None,
    one: tuple[str, str, str] | None,
    *,
    has_user_each: bool,
) -> None:
    """Print a table."""
    if against is not None:
        lucid.compare(against)
        return
    if one:
        print(json.dumps(measure(one[0], int(one[1]), float(one[2]), has_user_each=has_user_each)))
        return
    table = Table("policy", "load", "jobs", "GPUs", "CPU s", "µs a job", "wall s", "peak MiB", "goal")
    for name in NAMES:
        for load in LOADS:
            for count in (size for size in SIZES if size <= largest):
                command = [sys.executable, __file__, "--one", name, str(count), str(load)]
                figures = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                is_met = figures["cpu_s"] <= GOAL_S and figures["mib"] <= GOAL_MIB
                goal = ("met" if is_met else "missed") if count == SIZES[-1] else ""
                table.add_row(
                    name, f"{load:g}", str(count), str(count // JOBS_PER_GPU), f"{figures['cpu_s']:.1f}",
                    f"{1e6 * figures['cpu_s'] / count:.0f}", f"{figures['wall_s']:.1f}", f"{figures['mib']:.0f}", goal,
                )  # fmt: skip
    Console(width=110).print(table)
    print(f"Goal: 1,000,000 jobs on 10,000 GPUs within {GOAL_S:.0f} s and {GOAL_MIB:.0f} MiB.")


if __name__ == "__main__":
    main()
