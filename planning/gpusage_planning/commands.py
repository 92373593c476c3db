"""The signatures of `gpusage plan` and `gpusage simulate`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from gpusage.cli import options
from gpusage.cli.program import run_by

POLICIES = ("slots", "price", "price-online", "packing", "packing-observed", "reactive", "sets")
"""As in `gpusage_planning.simulator.scenario`, which needs numpy."""
FORMATS = ("philly", "yarn", "sacct", "alibaba-2020", "alibaba-2023", "gavel", "lucid", "helios", "table")
"""As in `gpusage_planning.simulator.formats`."""
ORDERS = ("fifo", "easy", "sjf", "srtf", "las", "max-min", "multifactor")
"""As in `gpusage_planning.simulator.sweep`."""
PREEMPTION_S = 62.0
"""As in `gpusage_planning.simulator.orders`."""
PLAN_EXAMPLE = """\b
Examples:
  gpusage plan --jobs examples/plan/jobs.csv --cluster examples/plan/cluster.toml
  gpusage plan --jobs jobs.csv --cluster cluster.toml -o plan.html
  gpusage plan slices --last-month
"""
SIMULATE_EXAMPLE = """\b
Examples:
  gpusage simulate --generate 5000
  gpusage simulate --jobs trace.csv --cluster cluster.toml --policy slots --policy price -o page.html
  gpusage simulate --jobs trace.csv --cluster cluster.toml --draw-models --json
  gpusage simulate --last-month --draw-models
  gpusage simulate --jobs month.txt --cluster /etc/slurm/slurm.conf --draw-models
  gpusage simulate --generate 2000 --policy slots --policy price --order easy --order las
"""


class NumberRange(click.FloatRange):
    """A number between two ends. Click lets NaN pass, because it is neither above nor below an end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number of *value*."""
        number: float = super().convert(value, param, ctx)
        return number if not math.isnan(number) else self.fail(f"{value!r} is not a number.", param, ctx)


JOBS = click.option(
    "--jobs",
    "jobs_file",
    type=click.Path(path_type=Path),
    help="A trace, such as Philly's or what 'sacct --parsable2' printed.  [default: jobs drawn by chance]",
)
FORMAT = click.option(
    "--format",
    "format_name",
    type=click.Choice(FORMATS),
    help="Of --jobs; lab/docs/simulator.md describes each.  [default: the one by which the file is recognised]",
)
LAST_MONTH = click.option(
    "--last-month",
    is_flag=True,
    help="In place of --jobs: the last 30 days of this host's workload manager, on its own cluster.",
)
CLUSTER = click.option(
    "--cluster",
    "cluster_file",
    type=click.Path(path_type=Path),
    help="slurm.conf, or JSON or TOML as for 'gpusage validate'.  [default: an example, or --last-month's]",
)
GPUS_PER_NODE = click.option(
    "--gpus-per-node",
    type=click.IntRange(min=1),
    help="Of types of whose nodes the cluster's file says nothing.  [default: all GPUs in one node]",
)
DRAW_MODELS = click.option("--draw-models", is_flag=True, help="Draw a model for jobs of which the file names none.")
SEED = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The same one gives the same result."
)


@click.group(
    epilog=PLAN_EXAMPLE, short_help="Which nodes to pay for, and what runs where and when.", invoke_without_command=True
)
@click.option(
    "--jobs", "jobs_file", type=click.Path(path_type=Path), help="CSV file of the jobs: models, or step times."
)
@click.option(
    "--cluster",
    "cluster_file",
    type=click.Path(path_type=Path),
    help="JSON or TOML file of the nodes and their prices.",
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML page with a Gantt chart."
)
@click.option(
    "--limit",
    "limit_s",
    type=NumberRange(0.01, 3600),
    default=5.0,
    show_default=True,
    help="Seconds that each decision may take.",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=options.TIME,
    help="How long planning may take, such as 10m: then the best plan so far counts.  [default: until it is done]",
)
@click.option(
    "--budget", type=NumberRange(0, 1e12), help="What the whole plan may cost; status 1 where none found does."
)
@options.json_option
@run_by("gpusage_planning.plan.command:plan")
def plan() -> None:
    """Plan at the least cost which nodes are active, of which type, and which jobs use their GPUs, and when.

    The cost covers active nodes and missed deadlines. Each decision is a mixed-integer program, which HiGHS
    solves. It needs the extra [plan]. 'gpusage plan slices' is about MIG slices.
    """


@plan.command(short_help="Which MIG slices GPUs should be cut into.")
@JOBS
@FORMAT
@LAST_MONTH
@CLUSTER
@GPUS_PER_NODE
@DRAW_MODELS
@SEED
@click.option(
    "--tries", type=click.IntRange(min=1), default=300, show_default=True, help="About how many layouts to simulate."
)
@options.json_option
@run_by("gpusage_planning.slices.command:plan_slices")
def slices() -> None:
    """Find the MIG layout of each node under which the jobs would have waited least, by the simulator.

    Beside it stand today's layout, shares, and whole GPUs. The answer is a configuration for mig-parted and lines of
    gres.conf and slurm.conf.
    """


@click.command(epilog=SIMULATE_EXAMPLE, short_help="What policies would do to a trace of jobs, side by side.")
@JOBS
@FORMAT
@LAST_MONTH
@CLUSTER
@GPUS_PER_NODE
@click.option("--spread", is_flag=True, help="Let a job's GPUs be on as many nodes as can be.  [default: on as few]")
@click.option(
    "--pairs",
    "pairs_file",
    type=click.Path(path_type=Path),
    help="CSV or Parquet file of pairs that were measured (model, beside, slowdown), or a table of 'gpusage profile'.",
)
@click.option("--policy", "policies", type=click.Choice(POLICIES), multiple=True, help="[default: four of them]")
@click.option(
    "--order", "orders", type=click.Choice(ORDERS), multiple=True, help="Which job goes first.  [default: the policy's]"
)
@click.option(
    "--duration-error",
    type=NumberRange(0, 10),
    help="For sjf and srtf: predict run times with such a deviation of the logarithm.  [default: by time limits]",
)
@click.option(
    "--preemption-s",
    type=NumberRange(0, 86400),
    default=PREEMPTION_S,
    show_default=True,
    help="Seconds that a suspended job's next start takes.",
)
@click.option(
    "--round-s",
    type=NumberRange(1, 86400),
    help="From one choice of the jobs that run to the next.  [default: 60 for las, 360 for max-min]",
)
@click.option("--generate", type=click.IntRange(1, 10_000_000), help="How many jobs to draw.  [default: 1000]")
@click.option(
    "--load",
    type=NumberRange(0.01, 100),
    default=1.0,
    show_default=True,
    help="GPU time that drawn jobs ask for.",
)
@DRAW_MODELS
@SEED
@click.option(
    "--repetitions", type=click.IntRange(1, 1000), default=5, show_default=True, help="Seeds, from --seed on."
)
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes side by side.")
@click.option(
    "--dask",
    "dask_address",
    metavar="ADDRESS",
    help="Scheduler of a Dask cluster that simulates in place of processes here; it must see the same files.",
)
@options.json_option
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML page with plots.")
@run_by("gpusage_planning.simulator.command:compare")
def simulate() -> None:
    """Simulate each policy on the same jobs, and show makespan, waits, utilization and broken promises side by side.

    Policies: 'slots', whole GPUs; 'price-online', what gpusaged decides when a job comes, by the room that there is;
    'price', what it decides on an empty cluster; 'packing', first fit decreasing on predicted utilization,
    'packing-observed' on true ones, 'reactive' after a minute of profiling; 'sets', where a job joins those to whose
    throughput it adds most. The formats of --jobs are in lab/docs/simulator.md.

    Orders: 'fifo', the oldest job; 'easy', where others overtake that do not delay it; 'sjf', the shortest; 'srtf',
    the one with the least left; 'las', Tiresias' two queues; 'max-min', fair shares by user;
    'multifactor', Slurm's. 'srtf', 'las' and 'max-min' suspend running jobs.
    """
