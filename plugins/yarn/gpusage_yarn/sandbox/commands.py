"""`gpusage yarn sandbox`: up, shell, restart, down."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import get_args

import click

from gpusage.configuration import SiteMode
from gpusage.sandboxes.inside import enter
from gpusage.sandboxes.progress import progress

_FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("gpusage-yarn-sandbox"),
    show_default=True,
    help="Where all of it lies.",
)
_USUAL = {"yarn.scheduler.capacity.maximum-am-resource-percent": "0.1"}
"""YARN's own, so that what is tried here is what a site has."""
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def sandbox() -> None:
    """Bring up a private, real YARN in a folder, without root, to try things on."""


@sandbox.command()
@_FOLDER
@click.option(
    "--nodes",
    default="1xv100:2,1xa100:2,1xh100:2,1xcpu:0",
    show_default=True,
    help="COUNTxTYPE:GPUS,... A type is a node label, unless it has 0 GPUs.",
)
@click.option("--gpusage", "mode", type=click.Choice(get_args(SiteMode)), help="Switch gpusage on, in this mode.")
@click.option(
    "--jar",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Put on every classpath.  [default: with --gpusage, the one that 'gpusage yarn jar' prints]",
)
@_JSON
def up(folder: Path, nodes: str, mode: SiteMode | None, jar: Path | None, *, as_json: bool) -> None:
    """Start a cluster: one ResourceManager, and a NodeManager a node.

    Hadoop is fetched with Maven on first use; nothing is installed on the host. While the cluster is up, other users of
    the host can run commands in it as you, because a YARN without Kerberos believes any user name.

    Example: gpusage yarn sandbox up --gpusage enforce --nodes 2xv100:4,1xh100:8,1xcpu:0
    """
    from gpusage_yarn.sandbox import ClusterPlan, parse_nodes, start_sandbox  # noqa: PLC0415 - as above
    from gpusage_yarn.sandbox.jar import find_jar  # noqa: PLC0415 - --help stays quick
    from gpusage_yarn.sandbox.trial import start_daemon, with_gpusage  # noqa: PLC0415 - as above

    plan = ClusterPlan(nodes=parse_nodes(nodes), jar=jar, scheduler_settings=_USUAL)
    if mode:
        import_module("gpusage_yarn.rest")  # what gpusaged needs of the extra [yarn]: told now, not when it is missed
        plan = with_gpusage(plan, jar or find_jar(), mode)
    with progress(quiet=as_json) as report:
        cluster = start_sandbox(plan, folder=folder, report=report)
    if mode:
        start_daemon(cluster)
    if as_json:
        document = {
            "schema": "gpusage.yarn.sandbox/1",
            "folder": str(cluster.layout.folder),
            "up": True,
            "hadoop_version": cluster.hadoop.version,
            "rm_url": cluster.rm_url,
            "hadoop_conf_dir": cluster.environment["HADOOP_CONF_DIR"],
            "nodes": {name: cluster.node_id(name) for name in cluster.nodes()},
            "gpusage": mode,
        }
        click.echo(json.dumps(document, indent=1))
        return
    click.echo(f"Hadoop {cluster.hadoop.version} is up at {cluster.rm_url}: {', '.join(cluster.nodes())}.")
    if mode:
        click.echo(f"gpusage is switched on there in mode {mode}, and gpusaged runs.")
    else:
        click.echo("It is plain YARN; a sandbox with gpusage in it: gpusage yarn sandbox up --gpusage enforce")
    click.echo("While it is up, other users of this host can run commands in it as you: YARN asks nobody who they are.")
    click.echo(f"Enter it: gpusage yarn sandbox shell --folder {folder}")


@sandbox.command()
@_FOLDER
@click.argument("command", nargs=-1)
def shell(folder: Path, command: tuple[str, ...]) -> None:
    """Open a shell inside, or run COMMAND there.

    Example: gpusage yarn sandbox shell -- yarn node -list
    """
    from gpusage_yarn.sandbox import open_sandbox  # noqa: PLC0415 - --help stays quick

    enter(command, open_sandbox(folder).environment)


@sandbox.command()
@_FOLDER
def restart(folder: Path) -> None:
    """Restart every daemon, with the configuration as it is now; containers run on.

    Inside, $HADOOP_CONF_DIR is what all of them read.

    Example: gpusage yarn sandbox restart
    """
    from gpusage_yarn.sandbox import open_sandbox  # noqa: PLC0415 - --help stays quick
    from gpusage_yarn.sandbox.trial import start_daemon, stop_daemon  # noqa: PLC0415 - as above

    cluster = open_sandbox(folder)
    runs = stop_daemon(cluster)
    cluster.restart()
    if runs:
        start_daemon(cluster)
    click.echo(f"{', '.join(cluster.nodes())} and the ResourceManager run anew.")


@sandbox.command()
@_FOLDER
@_JSON
def down(folder: Path, *, as_json: bool) -> None:
    """End every container and daemon of the sandbox, and remove its folder.

    Example: gpusage yarn sandbox down
    """
    from gpusage_yarn.sandbox import open_sandbox  # noqa: PLC0415 - --help stays quick

    open_sandbox(folder).down()
    document = {"schema": "gpusage.yarn.sandbox/1", "folder": str(folder.absolute()), "up": False}
    click.echo(json.dumps(document, indent=1) if as_json else f"{folder} is gone.")
