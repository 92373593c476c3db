"""`gpusage yarn sandbox`: up, shell, down."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gpusage.sandboxes.inside import enter
from gpusage.sandboxes.progress import progress

_FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("gpusage-yarn-sandbox"),
    show_default=True,
    help="Where all of it lies.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def sandbox() -> None:
    """Bring up a private, real YARN in a folder, without root, to try things on."""


@sandbox.command()
@_FOLDER
@click.option(
    "--nodes",
    default="1xv100:2,1xa100:2,1xh100:2",
    show_default=True,
    help="COUNTxTYPE:GPUS,... A type is a node label, unless it has 0 GPUs.",
)
@click.option("--jar", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Put on every classpath.")
@_JSON
def up(folder: Path, nodes: str, jar: Path | None, *, as_json: bool) -> None:
    """Start a cluster: one ResourceManager, and a NodeManager a node.

    Hadoop is fetched with Maven on first use; nothing is installed on the host.

    Example: gpusage yarn sandbox up --nodes 2xv100:4,1xh100:8,1xcpu:0
    """
    from gpusage_yarn.sandbox import ClusterPlan, parse_nodes, start_sandbox  # noqa: PLC0415 - --help stays quick

    plan = ClusterPlan(nodes=parse_nodes(nodes), jar=jar)
    with progress(quiet=as_json) as report:
        cluster = start_sandbox(plan, folder=folder, report=report)
    if as_json:
        document = {
            "schema": "gpusage.yarn.sandbox/1",
            "folder": str(cluster.layout.folder),
            "up": True,
            "hadoop_version": cluster.hadoop.version,
            "rm_url": cluster.rm_url,
            "hadoop_conf_dir": cluster.environment["HADOOP_CONF_DIR"],
            "nodes": {name: cluster.node_id(name) for name in cluster.nodes()},
        }
        click.echo(json.dumps(document, indent=1))
        return
    click.echo(f"Hadoop {cluster.hadoop.version} is up at {cluster.rm_url}: {', '.join(cluster.nodes())}.")
    click.echo(f"Enter it: gpusage yarn sandbox shell --folder {folder}")
    if jar is None:
        click.echo("It is plain YARN; a sandbox with gpusage in it needs --jar, which docs/yarn.md says how to build.")


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
@_JSON
def down(folder: Path, *, as_json: bool) -> None:
    """End every container and daemon of the sandbox, and remove its folder.

    Example: gpusage yarn sandbox down
    """
    from gpusage_yarn.sandbox import open_sandbox  # noqa: PLC0415 - --help stays quick

    open_sandbox(folder).down()
    document = {"schema": "gpusage.yarn.sandbox/1", "folder": str(folder.absolute()), "up": False}
    click.echo(json.dumps(document, indent=1) if as_json else f"{folder} is gone.")
