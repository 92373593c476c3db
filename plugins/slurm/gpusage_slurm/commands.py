"""`gpusage slurm`: the admin's side."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from gpusage.adapters.commands import run_by
from gpusage.adapters.configuration import SiteMode
from gpusage.adapters.install import libexec_folder
from gpusage_slurm.sandbox_commands import sandbox

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
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")

_TRACE_EXAMPLE = """\b
Example:
  sacct --allusers --allocations --parsable2 --starttime=now-30days \\
    --format=JobID,User,Submit,ElapsedRaw,TimelimitRaw,AllocTRES,Comment > month.txt
  gpusage slurm trace month.txt > jobs.csv
  gpusage status --json > cluster.json
  gpusage simulate --jobs jobs.csv --cluster cluster.json
"""


@click.group()
def slurm() -> None:
    """Install, check and try gpusage for Slurm."""


slurm.add_command(sandbox)


@slurm.command()
@_SLURM_CONF
@click.option("--mode", type=click.Choice(get_args(SiteMode)), help="What gpusage may do.  [default: observe]")
@_SYSTEMD
@click.option(
    "--node",
    "node_folder",
    is_flag=False,
    flag_value=libexec_folder(),
    type=click.Path(path_type=Path, file_okay=False),
    help="Only write what Slurm runs on this host into this folder.  [with no value: /usr/libexec/gpusage]",
)
@click.option("--nodes-ready", is_flag=True, help="Confirm that every compute node has its copies of the scripts.")
@_YES
@_JSON
@run_by("gpusage_slurm.actions:install")
def install() -> None:
    """Show what installing would change at this site; with --yes, change it.

    In mode `observe`, gpusage records decisions and rewrites no job: begin with it.

    Example: gpusage slurm install --mode advise --systemd --nodes-ready --yes
    """


@slurm.command()
@_SLURM_CONF
@_SYSTEMD
@click.option(
    "--node",
    "node_folder",
    is_flag=False,
    flag_value=libexec_folder(),
    type=click.Path(path_type=Path, file_okay=False),
    help="Only remove what 'install --node' wrote on this host.  [with no value: /usr/libexec/gpusage]",
)
@click.option("--with-jobs", is_flag=True, help="Uninstall even if rewritten jobs wait or run.")
@_YES
@_JSON
@run_by("gpusage_slurm.actions:uninstall")
def uninstall() -> None:
    """Show what removing gpusage would change at this site; with --yes, change it.

    A rewritten job needs cli_filter and the task prolog until it ends. So no such job may wait or run; see `gpusage
    slurm drain`. What Slurm runs on its nodes stays until Slurm has read slurm.conf again; then run this once more.

    Example: gpusage slurm uninstall --yes
    """


@slurm.command()
@_YES
@_JSON
@run_by("gpusage_slurm.actions:drain")
def drain() -> None:
    """Show which rewritten jobs wait or run; with --yes, stop rewriting and turn back the jobs that wait.

    --yes creates the kill switch, the file that gpusage.toml names, so that new jobs are left alone; remove it to
    rewrite jobs again. Run this where gpusaged runs: the command waits until gpusaged has seen the file. Slurm 22.05
    turns back only those that are bound to a GPU type: they get all shares of one GPU.

    Example: gpusage slurm drain --yes
    """


@slurm.command()
@_SLURM_CONF
@_JSON
@click.pass_context
@run_by("gpusage_slurm.actions:doctor")
def doctor() -> None:
    """Check the installation; each line passes, warns or fails, and says what to do.

    The exit status is 1 where a check fails.

    Example: gpusage slurm doctor
    """


@slurm.command()
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path),
    required=True,
    help="What `gpusage plan --json` printed; its times count from when it was made.",
)
@_YES
@_JSON
@run_by("gpusage_slurm.power.actions:power")
def power() -> None:
    """Show which nodes a plan has Slurm suspend and resume now; with --yes, have Slurm do so.

    A node on which a job runs or is to start is left alone, as is one that is drained, down or reserved, and every node
    that is not in the plan. Slurm's power saving must be set up, and --yes needs the rights of an admin of Slurm. Do
    this once a minute, for example by cron: what is done already is not done again.

    Example: gpusage slurm power --plan plan.json --yes
    """


@slurm.command()
@click.option("--once", is_flag=True, help="Look once, and end.  [default: every daemon.refresh_s]")
@_JSON
@run_by("gpusage_slurm.late.decisions:late")
def late() -> None:
    """Decide jobs that wait and brought no description of their model: from slurmrestd, or a host without cli_filter.

    Each model is read in a child process with its user's own rights, so this runs as root, beside slurmctld; any other
    user's is for jobs of its own. gpusaged decides, and a job that still waits is changed. Slurm 22.05 changes no
    waiting GPU into a share: there, and for srun and salloc, the decision is advice in the job's mark.

    Example: gpusage slurm late --once
    """


@slurm.command()
@_JSON
@run_by("gpusage_slurm.actions:status")
def status() -> None:
    """Show what gpusaged sees: its mode, the cluster, and how many decisions it has made.

    Example: gpusage slurm status
    """


@slurm.command(name="trace", epilog=_TRACE_EXAMPLE)
@click.argument("sacct_file", type=click.Path(path_type=Path))
@run_by("gpusage_slurm.trace:print_trace")
def trace() -> None:
    """Turn what sacct printed into a trace for `gpusage simulate`."""
