"""`gpusage status`: what gpusaged on this host sees, of every workload manager."""

from __future__ import annotations

import click

from gpusage.cli import tables
from gpusage.cli.status_lines import cluster_lines, daemon_lines
from gpusage.configuration import DaemonSettings
from gpusage.configuration_file import read_configuration
from gpusage.managers import installed_managers
from gpusage.plain_text import visible_lines
from gpusage.service.client import find_status


def show_status(*, as_json: bool) -> None:
    """Show what gpusaged on this host sees: its mode, its clusters, and how many decisions it has made."""
    configuration, _ = read_configuration()
    _, status = find_status(tuple(dict.fromkeys((configuration.daemon.socket, DaemonSettings().socket))))
    if as_json:
        tables.print_json(status)
        return
    managers = installed_managers().values()
    clusters = (line for manager in managers for line in cluster_lines(status, manager.name, manager.title))
    for line in (*daemon_lines(status), *clusters):
        click.echo(visible_lines(line))
