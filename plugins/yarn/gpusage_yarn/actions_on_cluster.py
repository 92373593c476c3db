"""What those of `gpusage yarn`'s commands do that ask a running cluster, a function for each."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from gpusage.api import advisor
from gpusage.cli.findings import show_findings
from gpusage.configuration_file import read_configuration
from gpusage.service.client import read_status
from gpusage_yarn.address import SOCKET, require_addresses, sockets
from gpusage_yarn.cluster import cluster_of, read_view
from gpusage_yarn.doctor import examine
from gpusage_yarn.evidence import gather
from gpusage_yarn.jmx import MOST_NODES, NODES_LIMIT_S, ask_nodes, with_told
from gpusage_yarn.rest import ResourceManager
from gpusage_yarn.settings import YarnSettings
from gpusage_yarn.status import describe

_SCHEMA = "gpusage.yarn.install/1"


def doctor(context: click.Context, conf_dir: Path | None, addresses: tuple[str, ...], *, as_json: bool) -> None:
    """Check the installation; each line passes, warns or fails, and says what to do."""
    evidence = gather(conf_dir, addresses)
    findings, schema = examine(evidence), "gpusage.yarn.doctor/1"
    context.exit(show_findings(findings, evidence.own.configuration, schema=schema, as_json=as_json))


def status(addresses: tuple[str, ...], *, as_json: bool) -> None:
    """Show the GPUs of each node label and what is free of them, and what gpusaged does."""
    configuration, broken = read_configuration()
    if broken:
        click.echo(f"gpusage: {broken}", err=True)
    settings = configuration.of_manager(YarnSettings)
    manager = ResourceManager(require_addresses(settings, addresses), patience_s=0)
    view = read_view(manager.get, settings.share_resource)
    sharing = [node for node in view.nodes if node.usable and node.total.share]
    view = with_told(view, ask_nodes(sharing[:MOST_NODES], manager.address.partition(":")[0], NODES_LIMIT_S))
    cluster = cluster_of(view, advisor().catalogue)
    _, daemon_status, trouble = read_status(sockets(None if broken else configuration, manager.settings(SOCKET)))
    if as_json:
        document = {"schema": "gpusage.yarn.status/1", "clusters": {"yarn": asdict(cluster)}, "gpusaged": daemon_status}
        click.echo(json.dumps(document, indent=1))
    else:
        click.echo(describe(view, cluster, daemon_status, trouble))
