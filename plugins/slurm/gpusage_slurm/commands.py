"""`gpusage slurm`: the admin's side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import click

from gpusage.cli.options import Function, json_option
from gpusage.cli.program import run_by
from gpusage.node.dividing import libexec_folder
from gpusage.settings.configuration import SiteMode

_SLURM_CONF = click.option(
    "--slurm-conf",
    type=click.Path(path_type=Path),
    help="Slurm's configuration file.  [default: $SLURM_CONF, else /etc/slurm/slurm.conf]",
)
_SYSTEMD = click.option(
    "--systemd",
    "unit_folder",
    is_flag=False,
    flag_value=Path("/etc/systemd/system"),
    type=click.Path(path_type=Path, file_okay=False),
    help="Also write gpusaged's unit into this folder.  [with no value: /etc/systemd/system]",
)
_YES = click.option("--yes", is_flag=True, help="Make the change instead of only showing it.")


def _node_option(purpose: str) -> Callable[[Function], Function]:
    return click.option(
        "--node",
        "node_folder",
        is_flag=False,
        flag_value=libexec_folder(),
        type=click.Path(path_type=Path, file_okay=False),
        help=f"{purpose}  [with no value: /usr/libexec/gpusage]",
    )


@click.group()
def slurm() -> None:
    """Install, check and try gpusage for Slurm."""


@slurm.command()
@_SLURM_CONF
@click.option("--mode", type=click.Choice(get_args(SiteMode)), help="What gpusage may do.  [default: observe]")
@_SYSTEMD
@_node_option("Only write what Slurm runs on this host into this folder.")
@click.option("--nodes-ready", is_flag=True, help="Confirm that every compute node has its copies of the scripts.")
@_YES
@json_option
@run_by("gpusage_slurm.actions:install")
def install() -> None:
    """Show what installing would change at this site; with --yes, change it.

    In mode `observe`, gpusage records decisions and rewrites no job: begin with it.

    Example: gpusage slurm install --mode advise --systemd --nodes-ready --yes
    """


@slurm.command()
@_SLURM_CONF
@_SYSTEMD
@_node_option("Only remove what 'install --node' wrote on this host.")
@click.option("--with-jobs", is_flag=True, help="Uninstall even if rewritten jobs are pending or running.")
@_YES
@json_option
@run_by("gpusage_slurm.actions:uninstall")
def uninstall() -> None:
    """Show what removing gpusage would change at this site; with --yes, change it.

    A rewritten job needs cli_filter and the task prolog until it ends. So no such job may be pending or running; see
    `gpusage slurm drain`. The scripts on nodes stay until Slurm has read slurm.conf again; then run this once more.

    Example: gpusage slurm uninstall --yes
    """


@slurm.command()
@_YES
@json_option
@run_by("gpusage_slurm.jobs.drain:drain")
def drain() -> None:
    """Show pending and running rewritten jobs; with --yes, stop rewriting and restore the requests of pending ones.

    --yes creates the kill switch, the file that gpusage.toml names, so that new jobs stay as they are; remove it
    to rewrite jobs again. Run this where gpusaged runs: the command waits until gpusaged has seen the file. Slurm 22.05
    can restore only jobs that are bound to a GPU type: they get all shares of one GPU.

    Example: gpusage slurm drain --yes
    """


@slurm.command()
@_SLURM_CONF
@json_option
@click.pass_context
@run_by("gpusage_slurm.actions:doctor")
def doctor() -> None:
    """Check the installation; each line passes, warns or fails, and says what to do.

    The exit status is 1 if a check fails.

    Example: gpusage slurm doctor
    """


@slurm.command()
@json_option
@run_by("gpusage_slurm.actions:status")
def status() -> None:
    """Show what gpusaged observes: its mode, the cluster, and how many decisions it has made.

    Example: gpusage slurm status
    """
