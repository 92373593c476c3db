"""What the admin's commands of `gpusage slurm` do, a function for each."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gpusage.cli import tables
from gpusage.cli.changes import show_and_make
from gpusage.cli.findings import show_findings
from gpusage.configuration import SiteMode
from gpusage.configuration_file import load_configuration
from gpusage.service.client import find_status
from gpusage_hooks.errors import RequestError
from gpusage_slurm import drain as leaving
from gpusage_slurm.address import local_sockets
from gpusage_slurm.doctor.checks import examine
from gpusage_slurm.doctor.evidence import gather
from gpusage_slurm.drain import require_none
from gpusage_slurm.installing.install import (
    PACKAGED_UNIT,
    find_site,
    new_node_scripts,
    plan_installation,
    plan_node,
    plan_uninstallation,
)
from gpusage_slurm.status import describe

_INSTALL = "gpusage.slurm.install/1"


def install(
    slurm_conf: Path | None,
    mode: SiteMode | None,
    *,
    nodes_ready: bool,
    yes: bool,
    as_json: bool,
    **folders: Path | None,
) -> None:
    """Show what installing would change at this site, or on a node; with --yes, change it."""
    unit_folder, node_folder = folders["unit_folder"], folders["node_folder"]
    if node_folder is not None:
        after = f"Now let Prolog, Epilog and TaskProlog of slurm.conf name the scripts in {node_folder}"
        show_and_make(plan_node(node_folder.absolute()), schema=_INSTALL, yes=yes, as_json=as_json, after=after)
        return
    edits = plan_installation(find_site(slurm_conf, unit_folder), mode)
    scripts = new_node_scripts(edits)
    if yes and scripts and not nodes_ready:
        message = (
            f"Node scripts must be on every compute node before its slurmd reads slurm.conf, because a node that lacks "
            f"one is drained or fails its tasks, and this host cannot see that; got {', '.join(scripts)}. Have gpusage "
            "at the same path there, and a shared or copied folder of slurm.conf, then add --nodes-ready."
        )
        raise RequestError(message)
    has_unit = unit_folder is not None or PACKAGED_UNIT.is_file()
    start = "systemctl enable --now gpusaged" if has_unit else "gpusaged (or install it with --systemd)"
    after = f"Now run: scontrol reconfigure; {start}; gpusage slurm doctor"
    show_and_make(edits, schema=_INSTALL, yes=yes, as_json=as_json, after=after)


def uninstall(slurm_conf: Path | None, unit_folder: Path | None, *, with_jobs: bool, yes: bool, as_json: bool) -> None:
    """Show what taking gpusage out would change at this site; with --yes, change it."""
    if yes and not with_jobs:
        require_none()
    edits = plan_uninstallation(find_site(slurm_conf, unit_folder))
    after = "Now run: scontrol reconfigure; gpusage slurm uninstall --yes; systemctl disable --now gpusaged"
    show_and_make(edits, schema=_INSTALL, yes=yes, as_json=as_json, after=after)


def drain(*, yes: bool, as_json: bool) -> None:
    """Show which rewritten jobs wait or run; with --yes, rewrite no more and turn those back that wait."""
    path = load_configuration().kill_switch
    switch = leaving.switch_on(path, local_sockets()) if yes else leaving.Switch(path=path)
    departures = leaving.departures(act=yes)
    if as_json:
        tables.print_json(leaving.document(departures, switch, act=yes))
        return
    tables.show(*leaving.lines(departures, switch, act=yes))


def doctor(context: click.Context, slurm_conf: Path | None, *, as_json: bool) -> None:
    """Check the installation; each line passes, warns or fails, and says what to do."""
    evidence = gather(slurm_conf)
    findings, schema = examine(evidence), "gpusage.slurm.doctor/1"
    context.exit(show_findings(findings, evidence.own.configuration, schema=schema, as_json=as_json))


def status(*, as_json: bool) -> None:
    """Show what gpusaged sees: its mode, the cluster, and how many decisions it has made."""
    _, answer = find_status(local_sockets())
    click.echo(json.dumps(answer, indent=1) if as_json else describe(answer))
