"""`gpusage slurm sandbox`: up, shell, down."""

from __future__ import annotations

import click

from gpusage.cli.options import json_option
from gpusage.cli.program import run_by
from gpusage_sandboxes.options import folder_option, mode_option

_FOLDER = folder_option("gpusage-sandbox")


@click.group()
def sandbox() -> None:
    """Bring up a private, real Slurm in a folder, without root, to try things on."""


@sandbox.command()
@_FOLDER
@click.option("--nodes", default="1xv100:2,1xa100:2,1xh100:2", show_default=True, help="Nodes: COUNTxTYPE:GPUS,...")
@click.option("--mps", "mps_per_gpu", default=100, show_default=True, help="Units of gres/mps per GPU; 0 for none.")
@click.option("--release", help="Debian or Ubuntu release to take Slurm from, such as trixie.  [default: the host's]")
@click.option("--accounting", is_flag=True, help="Also start slurmdbd, on a MariaDB of its own, and have slurmrestd.")
@mode_option
@json_option
@run_by("gpusage_slurm.sandbox.actions:up")
def up() -> None:
    """Start a cluster.

    The first use downloads Slurm from the host's own apt mirror; nothing is installed on the host.

    Example: gpusage slurm sandbox up --nodes 2xv100:4,1xh100:8 --release trixie --gpusage enforce
    """


@sandbox.command(context_settings={"allow_interspersed_args": False})
@_FOLDER
@click.argument("command", nargs=-1)
@run_by("gpusage_slurm.sandbox.actions:shell")
def shell() -> None:
    """Open a shell inside, or run COMMAND there.

    Example: gpusage slurm sandbox shell sinfo -N
    """


@sandbox.command()
@_FOLDER
@json_option
@run_by("gpusage_slurm.sandbox.actions:down")
def down() -> None:
    """End every job and daemon of the sandbox, and remove its folder.

    Example: gpusage slurm sandbox down
    """
