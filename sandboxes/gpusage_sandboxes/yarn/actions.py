"""What the commands of `gpusage yarn sandbox` do, a function for each."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from gpusage.settings.configuration import SiteMode
from gpusage_sandboxes.actions import mode_line, show_up, shut_down
from gpusage_sandboxes.gpusaged import DAEMON, start_gpusaged, stop_gpusaged
from gpusage_sandboxes.host import progress
from gpusage_sandboxes.sandbox import enter
from gpusage_sandboxes.yarn import ClusterPlan, open_sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.jar import find_jar
from gpusage_sandboxes.yarn.settings import with_gpusage

_USUAL = {"yarn.scheduler.capacity.maximum-am-resource-percent": "0.1"}
"""YARN's own, so that what is tried here is what a site has."""


def up(folder: Path, nodes: str, mode: SiteMode | None, jar: Path | None, *, as_json: bool) -> None:
    """Start a cluster: one ResourceManager, and one NodeManager per node."""
    plan = ClusterPlan(nodes=parse_nodes(nodes), jar=jar, scheduler_settings=_USUAL)
    if mode:
        import_module("gpusage_yarn.cluster.resource_manager")  # fails now, not in gpusaged, without the extra [yarn]
        plan = with_gpusage(plan, jar or find_jar(), mode)

    with progress(quiet=as_json) as report:
        cluster = start_sandbox(plan, folder=folder, report=report)
    if mode:
        start_gpusaged(cluster)
    details = {
        "hadoop_version": cluster.hadoop.version,
        "rm_url": cluster.rm_url,
        "hadoop_conf_dir": cluster.environment["HADOOP_CONF_DIR"],
        "nodes": {name: cluster.node_id(name) for name in cluster.nodes()},
        "gpusage": mode,
    }
    lines = (
        f"Hadoop {cluster.hadoop.version} is up at {cluster.rm_url}: {', '.join(cluster.nodes())}.",
        mode_line(cluster.manager, "YARN", mode),
        "While it is up, other users of this host can run commands in it as you: this YARN authenticates nobody.",
    )
    show_up(cluster, details, lines, as_json=as_json)


def shell(folder: Path, command: tuple[str, ...]) -> None:
    """Open a shell inside, or run COMMAND there."""
    enter(command, open_sandbox(folder).environment)


def restart(folder: Path) -> None:
    """Restart every daemon, with the configuration as it is now; containers run on."""
    cluster = open_sandbox(folder)
    is_part = cluster.layout.pid_file(DAEMON).exists()  # one that has died comes back, too
    stop_gpusaged(cluster)
    cluster.restart()
    if is_part:
        start_gpusaged(cluster)
    click.echo(f"{', '.join(cluster.nodes())} and the ResourceManager run again.")


def down(folder: Path, *, as_json: bool) -> None:
    """End every container and daemon of the sandbox, and remove its folder."""
    shut_down(open_sandbox(folder), folder, as_json=as_json)
