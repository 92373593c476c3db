"""`gpusage status`: what gpusaged on this host sees, of every workload manager."""

from __future__ import annotations

import click

from gpusage.cli.deferred import run_by
from gpusage.cli.options import json_option


@click.command()
@json_option
@run_by("gpusage.cli.status:show_status")
def command() -> None:
    """Show what gpusaged on this host observes: its mode, its clusters, and how many decisions it has made.

    With --json, this is a cluster file for `gpusage validate --cluster`.

    Example: gpusage status --json
    """
