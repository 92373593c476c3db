"""The signatures of `gpusage slurm sandbox`, `gpusage yarn sandbox`, and of a checkout's `gpusage yarn jar`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from gpusage.cli.options import json_option
from gpusage.cli.program import run_by
from gpusage.settings.configuration import SiteMode

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def folder_option(default: str) -> Decorator:
    """Return the option ``--folder``."""
    return click.option(
        "--folder",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path(default),
        show_default=True,
        help="Folder of the sandbox.",
    )


mode_option = click.option(
    "--gpusage", "mode", type=click.Choice(get_args(SiteMode)), help="Switch gpusage on there, in this mode."
)


@click.group(name="sandbox")
def slurm_sandbox() -> None:
    """Bring up a private, real Slurm in a folder, without root, to try things on."""


@slurm_sandbox.command("up")
@folder_option("gpusage-sandbox")
@click.option("--nodes", default="1xv100:2,1xa100:2,1xh100:2", show_default=True, help="Nodes: COUNTxTYPE:GPUS,...")
@click.option("--mps", "mps_per_gpu", default=100, show_default=True, help="Units of gres/mps per GPU; 0 for none.")
@click.option("--release", help="Debian or Ubuntu release to take Slurm from, such as trixie.  [default: the host's]")
@click.option("--accounting", is_flag=True, help="Also start slurmdbd, on a MariaDB of its own, and have slurmrestd.")
@mode_option
@json_option
@run_by("gpusage_sandboxes.slurm.actions:up")
def slurm_up() -> None:
    """Start a cluster.

    The first use downloads Slurm from the host's own apt mirror; nothing is installed on the host.

    Example: gpusage slurm sandbox up --nodes 2xv100:4,1xh100:8 --release trixie --gpusage enforce
    """


@slurm_sandbox.command("shell", context_settings={"allow_interspersed_args": False})
@folder_option("gpusage-sandbox")
@click.argument("command", nargs=-1)
@run_by("gpusage_sandboxes.slurm.actions:shell")
def slurm_shell() -> None:
    """Open a shell inside, or run COMMAND there.

    Example: gpusage slurm sandbox shell sinfo -N
    """


@slurm_sandbox.command("down")
@folder_option("gpusage-sandbox")
@json_option
@run_by("gpusage_sandboxes.slurm.actions:down")
def slurm_down() -> None:
    """End every job and daemon of the sandbox, and remove its folder.

    Example: gpusage slurm sandbox down
    """


@click.group(name="sandbox")
def yarn_sandbox() -> None:
    """Bring up a private, real YARN in a folder, without root, to try things on."""


@yarn_sandbox.command("up")
@folder_option("gpusage-yarn-sandbox")
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
@run_by("gpusage_sandboxes.yarn.actions:up")
def yarn_up() -> None:
    """Start a cluster: one ResourceManager, and one NodeManager per node.

    The first use downloads Hadoop with Maven; nothing is installed on the host. While the cluster is up, other users of
    the host can run commands in it as you, because YARN without Kerberos accepts any user name.

    Example: gpusage yarn sandbox up --gpusage enforce --nodes 2xv100:4,1xh100:8,1xcpu:0
    """


@yarn_sandbox.command("shell")
@folder_option("gpusage-yarn-sandbox")
@click.argument("command", nargs=-1)
@run_by("gpusage_sandboxes.yarn.actions:shell")
def yarn_shell() -> None:
    """Open a shell inside, or run COMMAND there.

    Example: gpusage yarn sandbox shell -- yarn node -list
    """


@yarn_sandbox.command("restart")
@folder_option("gpusage-yarn-sandbox")
@run_by("gpusage_sandboxes.yarn.actions:restart")
def yarn_restart() -> None:
    """Restart every daemon with the present configuration; containers continue to run.

    Inside the sandbox, all daemons read $HADOOP_CONF_DIR.

    Example: gpusage yarn sandbox restart
    """


@yarn_sandbox.command("down")
@folder_option("gpusage-yarn-sandbox")
@json_option
@run_by("gpusage_sandboxes.yarn.actions:down")
def yarn_down() -> None:
    """End every container and daemon of the sandbox, and remove its folder.

    Example: gpusage yarn sandbox down
    """


@click.command()
@run_by("gpusage_sandboxes.yarn.jar:show_jar")
def jar() -> None:
    """Print the path of the jar for Hadoop's daemons, to copy it; in a checkout, build it first.

    Example: cp "$(gpusage yarn jar)" $HADOOP_HOME/share/hadoop/yarn/lib/
    """
