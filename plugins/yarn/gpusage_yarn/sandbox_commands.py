"""`gpusage yarn sandbox`: up, shell, restart, down."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage.cli.deferred import run_by
from gpusage.cli.options import json_option
from gpusage.sandboxes.options import folder_option, mode_option

_FOLDER = folder_option("gpusage-yarn-sandbox")


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
@mode_option
@click.option(
    "--jar",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Jar to put on every classpath.  [default: with --gpusage, the one that 'gpusage yarn jar' prints]",
)
@json_option
@run_by("gpusage_yarn.sandbox.actions:up")
def up() -> None:
    """Start a cluster: one ResourceManager, and one NodeManager per node.

    The first use downloads Hadoop with Maven; nothing is installed on the host. While the cluster is up, other users of
    the host can run commands in it as you, because YARN without Kerberos accepts any user name.

    Example: gpusage yarn sandbox up --gpusage enforce --nodes 2xv100:4,1xh100:8,1xcpu:0
    """


@sandbox.command()
@_FOLDER
@click.argument("command", nargs=-1)
@run_by("gpusage_yarn.sandbox.actions:shell")
def shell() -> None:
    """Open a shell inside, or run COMMAND there.

    Example: gpusage yarn sandbox shell -- yarn node -list
    """


@sandbox.command()
@_FOLDER
@run_by("gpusage_yarn.sandbox.actions:restart")
def restart() -> None:
    """Restart every daemon with the present configuration; containers continue to run.

    Inside the sandbox, all daemons read $HADOOP_CONF_DIR.

    Example: gpusage yarn sandbox restart
    """


@sandbox.command()
@_FOLDER
@json_option
@run_by("gpusage_yarn.sandbox.actions:down")
def down() -> None:
    """End every container and daemon of the sandbox, and remove its folder.

    Example: gpusage yarn sandbox down
    """
