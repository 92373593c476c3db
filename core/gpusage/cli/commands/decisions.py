"""`gpusage decisions`: what was done to a job, and why."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage.cli.deferred import run_by
from gpusage.cli.options import json_option


@click.command(name="decisions")
@click.argument("job_id", metavar="[JOBID]", default="")
@click.option(
    "--last", "count", type=click.IntRange(1, 100_000), metavar="N", help="Show the last N decisions.  [default: 20]"
)
@click.option("--user", metavar="NAME", default="", help="Show only this user's jobs.")
@click.option(
    "--as-profile",
    "profile_folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Instead, write what jobs used alone on a whole GPU as tables for 'gpusage train --data FOLDER'.",
)
@json_option
@run_by("gpusage.cli.past.decisions:decisions")
def command() -> None:
    """Show what gpusage did to a job, and why; without JOBID, the last decisions.

    A job's own user sees the line in the job. Users who may read the daemon's store see the whole record.

    Example: gpusage decisions 1234
    """
