"""`gpusage slurm`: the admin's side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import click

from gpusage.cli.admin import show_and_make, show_findings
from gpusage.configuration import SiteMode
from gpusage_hooks.errors import RequestError
from gpusage_slurm.sandbox.commands import sandbox

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
    help="Also gpusaged's unit, in this folder.  [with no value: /etc/systemd/system]",
)
_YES = click.option("--yes", is_flag=True, help="Make the change instead of only showing it.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
_INSTALL = "gpusage.slurm.install/1"


@click.group()
def slurm() -> None:
    """Install, check and try gpusage for Slurm."""


slurm.add_command(sandbox)


@slurm.command()
@_SLURM_CONF
@click.option("--mode", type=click.Choice(get_args(SiteMode)), help="What gpusage may do.  [default: observe]")
@_SYSTEMD
@click.option("--nodes-ready", is_flag=True, help="gpusage is at this path on every compute node.")
@_YES
@_JSON
def install(
    slurm_conf: Path | None,
    mode: SiteMode | None,
    unit_folder: Path | None,
    *,
    nodes_ready: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show what installing would change at this site; with --yes, change it.

    Nothing is rewritten at a site that begins with `observe`: decisions are only recorded.

    Example: gpusage slurm install --mode advise --systemd --nodes-ready --yes
    """
    from gpusage_slurm.install import find_site, new_node_scripts, plan_installation  # noqa: PLC0415 - quick --help

    edits = plan_installation(find_site(slurm_conf, unit_folder), mode)
    scripts = new_node_scripts(edits)
    if yes and scripts and not nodes_ready:
        message = (
            f"Node scripts must be on every compute node before its slurmd reads slurm.conf, because a node that lacks "
            f"one is drained or fails its tasks, and this host cannot see that; got {', '.join(scripts)}. Have gpusage "
            "at the same path there, and a shared or copied folder of slurm.conf, then add --nodes-ready."
        )
        raise RequestError(message)
    start = "systemctl enable --now gpusaged" if unit_folder else "gpusaged (or install it with --systemd)"
    after = f"Now run: scontrol reconfigure; {start}; gpusage slurm doctor"
    show_and_make(edits, schema=_INSTALL, yes=yes, as_json=as_json, after=after)


@slurm.command()
@_SLURM_CONF
@_SYSTEMD
@click.option("--with-jobs", is_flag=True, help="Go on although rewritten jobs wait or run.")
@_YES
@_JSON
def uninstall(slurm_conf: Path | None, unit_folder: Path | None, *, with_jobs: bool, yes: bool, as_json: bool) -> None:
    """Show what taking gpusage out would change at this site; with --yes, change it.

    A rewritten job needs cli_filter and the task prolog until it ends, so none may wait or run: `gpusage slurm drain`.

    Example: gpusage slurm uninstall --yes
    """
    from gpusage_slurm.drain import require_none  # noqa: PLC0415 - --help stays quick
    from gpusage_slurm.install import find_site, plan_uninstallation  # noqa: PLC0415 - as above

    if yes and not with_jobs:
        require_none()
    edits = plan_uninstallation(find_site(slurm_conf, unit_folder))
    after = "Now run: scontrol reconfigure; gpusage slurm uninstall --yes; systemctl disable --now gpusaged"
    show_and_make(edits, schema=_INSTALL, yes=yes, as_json=as_json, after=after)


@slurm.command()
@_YES
@_JSON
def drain(*, yes: bool, as_json: bool) -> None:
    """Show which rewritten jobs wait or run; with --yes, rewrite no more and turn those back that wait.

    New jobs are left alone by the kill switch, the file that gpusage.toml names; remove it to go on as before. Do this
    where gpusaged runs: it is waited for until it says that it saw the file. Slurm 22.05 turns no job back.

    Example: gpusage slurm drain --yes
    """
    from gpusage.cli import tables  # noqa: PLC0415 - --help stays quick
    from gpusage.configuration import load_configuration  # noqa: PLC0415 - as above
    from gpusage_slurm import drain as leaving  # noqa: PLC0415 - as above
    from gpusage_slurm.address import local_sockets  # noqa: PLC0415 - as above

    path = load_configuration().kill_switch
    switch = leaving.switch_on(path, local_sockets()) if yes else leaving.Switch(path=path)
    found = leaving.departures(act=yes)
    if as_json:
        tables.print_json(leaving.document(found, switch, act=yes))
        return
    tables.show(*leaving.lines(found, switch, act=yes))


@slurm.command()
@_SLURM_CONF
@_JSON
@click.pass_context
def doctor(context: click.Context, slurm_conf: Path | None, *, as_json: bool) -> None:
    """Check the installation; each line passes, warns or fails, and says what to do.

    The exit status is 1 where a check fails.

    Example: gpusage slurm doctor
    """
    from gpusage_slurm.doctor import examine  # noqa: PLC0415 - --help stays quick
    from gpusage_slurm.evidence import gather  # noqa: PLC0415 - as above

    evidence = gather(slurm_conf)
    status = show_findings(examine(evidence), evidence.configuration, schema="gpusage.slurm.doctor/1", as_json=as_json)
    context.exit(status)


@slurm.command()
@_JSON
def status(*, as_json: bool) -> None:
    """Show what gpusaged sees: its mode, the cluster, and how many decisions it has made.

    Example: gpusage slurm status
    """
    from gpusage.service.client import find_status  # noqa: PLC0415 - --help stays quick
    from gpusage_slurm.address import local_sockets  # noqa: PLC0415 - as above
    from gpusage_slurm.status import describe  # noqa: PLC0415 - as above

    _, answer = find_status(local_sockets())
    click.echo(json.dumps(answer, indent=1) if as_json else describe(answer))
