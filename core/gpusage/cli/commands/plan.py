"""`gpusage plan`: which nodes are active, and which jobs have their GPUs, and when."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage.cli import options
from gpusage.cli.program import run_by

EXAMPLE = """\b
Examples:
  gpusage plan --jobs examples/plan/jobs.csv --cluster examples/plan/cluster.toml
  gpusage plan --jobs jobs.csv --cluster cluster.toml -o plan.html
"""


@click.command(name="plan", epilog=EXAMPLE)
@click.option(
    "--jobs",
    "jobs_file",
    type=click.Path(path_type=Path),
    required=True,
    help="CSV file of the jobs: models, or step times.",
)
@click.option(
    "--cluster",
    "cluster_file",
    type=click.Path(path_type=Path),
    required=True,
    help="JSON or TOML file of the nodes and their prices.",
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML page with a Gantt chart."
)
@click.option(
    "--limit",
    "limit_s",
    type=options.NumberRange(0.01, 3600),
    default=5.0,
    show_default=True,
    help="Seconds that each decision may take.",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    callback=options.read_duration,
    help="How long planning may take, such as 10m: then the best plan so far counts.  [default: until it is done]",
)
@click.option(
    "--budget", type=options.NumberRange(0, 1e12), help="What the whole plan may cost; status 1 where none found does."
)
@options.json_option
@run_by("gpusage.cli.planning.run:plan")
def command() -> None:
    """Plan at the least cost which nodes are active, of which type, and which jobs use their GPUs, and when.

    The cost covers active nodes and missed deadlines. Each decision is a mixed-integer program, which HiGHS
    solves. It needs the extra [plan].
    """
