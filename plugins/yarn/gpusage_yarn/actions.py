"""The actions of the admin's commands of `gpusage yarn`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from gpusage.cli.admin import show_and_make, show_findings
from gpusage.cli.status import describe_limits
from gpusage.decisions.advisor import advisor
from gpusage.service.client import read_status
from gpusage.settings.configuration import SiteMode
from gpusage.settings.configuration_file import read_configuration
from gpusage_hooks.types import Cluster
from gpusage_yarn.cluster.configuration import SOCKET, require_addresses, sockets
from gpusage_yarn.cluster.jmx import MAX_NODES, NODES_LIMIT_S, query_nodes, with_free_gpus
from gpusage_yarn.cluster.resource_manager import ResourceManager
from gpusage_yarn.cluster.snapshot import ClusterSnapshot, build_cluster, read_snapshot
from gpusage_yarn.doctor.checks import run_checks
from gpusage_yarn.doctor.inspection import inspect_installation
from gpusage_yarn.install.classes import require_classes
from gpusage_yarn.install.site import find_site, installation_notes, plan_installation, plan_uninstallation, roles_here
from gpusage_yarn.settings import YarnSettings

_SCHEMA = "gpusage.yarn.install/1"


def install(conf_dir: Path | None, mode: SiteMode | None, *, yes: bool, as_json: bool, **typed: Any) -> None:  # options
    """Show what installing would change in Hadoop's files; with --yes, change it."""
    site = find_site(conf_dir, frozenset(typed.pop("roles")), **typed)
    roles = site.roles | roles_here(site)
    edits = plan_installation(site, mode)
    if yes:
        require_classes(edits, site.folder)

    restarted = {"rm": "ResourceManager", "node": "NodeManagers"}
    daemons = " and ".join(name for role, name in restarted.items() if role in roles)
    after = f"Now restart {daemons}; then run: gpusage yarn doctor" if daemons else "Now run: gpusage yarn doctor"
    show_and_make(edits, schema=_SCHEMA, yes=yes, as_json=as_json, after=after)
    for remark in installation_notes(site):
        click.echo(f"gpusage: note: {remark}", err=True)


def uninstall(conf_dir: Path | None, roles: tuple[Any, ...], *, yes: bool, as_json: bool) -> None:
    """Show what uninstalling would change in Hadoop's files; with --yes, change it."""
    edits = plan_uninstallation(find_site(conf_dir, frozenset(roles)))

    # A daemon that starts with our classes in its configuration, and without the jar, does not come up.
    after = "Restart the daemons; only then, if no role stays, remove the jar, and /usr/libexec/gpusage without Slurm."
    show_and_make(edits, schema=_SCHEMA, yes=yes, as_json=as_json, after=after)


def doctor(context: click.Context, conf_dir: Path | None, addresses: tuple[str, ...], *, as_json: bool) -> None:
    """Check the installation; each line passes, warns or fails, and says what to do."""
    inspection = inspect_installation(conf_dir, addresses)
    findings, schema = run_checks(inspection), "gpusage.yarn.doctor/1"
    context.exit(show_findings(findings, inspection.own.configuration, schema=schema, as_json=as_json))


def status(addresses: tuple[str, ...], *, as_json: bool) -> None:
    """Show the GPUs of each node label and what is free of them, and what gpusaged does."""
    configuration, broken = read_configuration()
    if broken:
        click.echo(f"gpusage: {broken}", err=True)
    settings = configuration.of_manager(YarnSettings)

    # Who asks for a status waits for nobody.
    manager = ResourceManager(require_addresses(settings, addresses), patience_s=0)
    snapshot = read_snapshot(manager.get, settings)
    sharing = [node for node in snapshot.nodes if node.usable and node.total.share]
    snapshot = with_free_gpus(
        snapshot, query_nodes(sharing[:MAX_NODES], manager.address.partition(":")[0], NODES_LIMIT_S)
    )
    cluster = build_cluster(snapshot, advisor().catalogue)

    _, daemon_status, trouble = read_status(sockets(None if broken else configuration, manager.settings(SOCKET)))
    if as_json:
        document = {"schema": "gpusage.yarn.status/1", "clusters": {"yarn": asdict(cluster)}, "gpusaged": daemon_status}
        click.echo(json.dumps(document, indent=1))
    else:
        click.echo(describe(snapshot, cluster, daemon_status, trouble))


def describe(snapshot: ClusterSnapshot, cluster: Cluster, status: Mapping[str, Any] | None, trouble: str) -> str:
    """Return a few lines of text."""
    queues = ", ".join(queue.path for queue in snapshot.queues)
    lines = [f"YARN {cluster.version}: {len(snapshot.nodes)} nodes, queues {queues}"]
    for pool in cluster.pools:
        room = "not shared"
        if pool.mps_per_gpu:
            # An upper bound, where nodes do not report each GPU.
            sharing = [each for each in snapshot.nodes_with_label(pool.site_type) if each.usable and each.total.share]
            is_exact = all(node.largest is not None for node in sharing)
            bound = "" if is_exact else " at most, by sums over GPUs"
            room = f"room for a share of {snapshot.room(pool.site_type)}{bound}"
        free = f"{pool.free_gpu_count} of {pool.gpu_count} GPUs free"
        lines.append(f"  {pool.site_type} ({pool.gpu or 'not in the catalogue'}): {free}, {room}")
    lines += [f"  memory limited by {limit}" for limit in describe_limits(cluster.pools)]
    lines += [f"  {note}" for note in cluster.notes]

    if status is None:
        return "\n".join([*lines, f"gpusaged: {trouble}"])
    switch = status.get("kill_switch", {})
    lines.append(f"gpusaged {status.get('version')}, up {status.get('uptime_s')} s, mode {status.get('mode')}")
    lines.append(f"kill switch: {'ON' if switch.get('on') else 'off'} ({switch.get('path')})")
    trouble = status.get("configuration", {}).get("error")
    if trouble:
        lines.append(f"configuration: not usable, the last good one is in force: {trouble}")
    counts = ", ".join(f"{name} {count}" for name, count in status.get("lines", {}).items())
    return "\n".join([*lines, f"asked: {counts}"])
