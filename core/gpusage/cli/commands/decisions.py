"""`gpusage decisions`: what was done to a job, and why."""

from __future__ import annotations

import click

from gpusage.cli.deferred import run_by
from gpusage.cli.options import json_option


@click.command(name="decisions")
@click.argument("job_id", metavar="[JOBID]", default="")
@click.option("--last", "count", type=click.IntRange(1, 100_000), metavar="N", help="The last N.  [default: 20]")
@click.option("--user", metavar="NAME", default="", help="Only this user's.")
@json_option
@run_by("gpusage.cli.decisions:decisions")
def command() -> None:
    """Show what was done to a job, and why; without a job, what was decided last.

    A job's own user sees the line that the job carries; who may read the daemon's store sees all that was decided.

    Example: gpusage decisions 1234
    """
