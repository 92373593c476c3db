"""`gpusage status`: what gpusaged on this host sees, of every workload manager."""

from __future__ import annotations

import click

from gpusage.cli import tables
from gpusage.cli.options import json_option
from gpusage.plain_text import visible_lines


@click.command()
@json_option
def command(*, as_json: bool) -> None:
    """Show what gpusaged on this host sees: its mode, its clusters, and how many decisions it has made.

    With --json, this is a cluster file for `gpusage validate --cluster`.

    Example: gpusage status --json
    """
    from gpusage.cli.status_lines import cluster_lines, daemon_lines  # noqa: PLC0415 - start-up time
    from gpusage.configuration import DaemonSettings, read_configuration  # noqa: PLC0415 - as above
    from gpusage.managers import installed_managers  # noqa: PLC0415 - as above
    from gpusage.service.client import find_status  # noqa: PLC0415 - as above

    configuration, _ = read_configuration()
    _, status = find_status(tuple(dict.fromkeys((configuration.daemon.socket, DaemonSettings().socket))))
    if as_json:
        tables.print_json(status)
        return
    managers = installed_managers().values()
    clusters = (line for manager in managers for line in cluster_lines(status, manager.name, manager.title))
    for line in (*daemon_lines(status), *clusters):
        click.echo(visible_lines(line))
