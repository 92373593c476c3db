"""The actions of the admin's commands of `gpusage slurm`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from gpusage.cli.admin import show_and_make, show_findings
from gpusage.cli.status import cluster_lines, daemon_lines
from gpusage.service.client import find_status
from gpusage.settings.configuration import SiteMode
from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.doctor.checks import run_checks
from gpusage_slurm.doctor.evidence import collect_evidence
from gpusage_slurm.install.node_scripts import SCRIPTS, plan_copies, plan_removal, script_path
from gpusage_slurm.install.site import (
    PACKAGED_UNIT,
    find_site,
    local_socket_candidates,
    new_node_scripts,
    plan_installation,
    plan_uninstallation,
)
from gpusage_slurm.jobs.stuck import find_shared_jobs
from gpusage_slurm.settings import SLURM

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
        after = f"slurm.conf may name the scripts in {node_folder} from now on"
        show_and_make(plan_copies(node_folder.absolute()), schema=_INSTALL, yes=yes, as_json=as_json, after=after)
        return

    edits = plan_installation(find_site(slurm_conf, unit_folder), mode)
    scripts = new_node_scripts(edits)
    if yes and scripts and not nodes_ready:
        message = (
            f"Node scripts must be on every compute node before its slurmd reads slurm.conf, because a node that lacks "
            f"one is drained or fails its tasks, and this host cannot see that; got {', '.join(scripts)}. Run "
            "'gpusage slurm install --node --yes' on each node (a deb or rpm has done so), copy what lies beside "
            "slurm.conf where its folder is not shared, then add --nodes-ready."
        )
        raise RequestError(message)

    has_unit = unit_folder is not None or PACKAGED_UNIT.is_file()
    start = "systemctl enable --now gpusaged" if has_unit else "gpusaged (or install it with --systemd)"
    after = f"Now run: scontrol reconfigure; {start}; gpusage slurm doctor"
    show_and_make(edits, schema=_INSTALL, yes=yes, as_json=as_json, after=after)


def uninstall(slurm_conf: Path | None, *, with_jobs: bool, yes: bool, as_json: bool, **folders: Path | None) -> None:
    """Show what taking gpusage out would change at this site, or on a node; with --yes, change it."""
    # By slurmctld's settings; where it does not answer, by slurm.conf alone.
    scripts: tuple[str, ...] = ()
    with suppress(RequestError):
        settings = scontrol.configuration()
        scripts = tuple(path for path in (script_path(settings, script) for script in SCRIPTS) if path)

    node_folder = folders["node_folder"]
    if node_folder is not None:
        if scripts:
            message = (
                f"Slurm must not run gpusage's scripts any more when {str(node_folder)!r} is emptied, because it "
                f"drains nodes that lack them; it runs {', '.join(scripts)}. Run first, on the controller: "
                "gpusage slurm uninstall --yes; scontrol reconfigure."
            )
            raise RequestError(message)
        show_and_make(plan_removal(node_folder), schema=_INSTALL, yes=yes, as_json=as_json, after="")
        _remove_if_empty(node_folder, yes=yes)
        return

    if yes and not with_jobs:
        _require_no_shares()
    site = find_site(slurm_conf, folders["unit_folder"])
    edits = plan_uninstallation(site, in_use=bool(scripts))
    if any(edit.changes and edit.path.is_relative_to(site.libexec) for edit in edits):
        after = "Now run: systemctl disable --now gpusaged"
    else:
        after = "Now run: scontrol reconfigure; then gpusage slurm uninstall --yes once more: it removes what nodes ran"
    show_and_make(edits, schema=_INSTALL, yes=yes, as_json=as_json, after=after)
    if scripts and not any(edit.changes for edit in edits) and not as_json:
        click.echo(f"Slurm still runs {', '.join(scripts)}. Run: scontrol reconfigure; then this once more.")
    _remove_if_empty(site.libexec, yes=yes)


def _require_no_shares() -> None:
    """Refuse to uninstall while jobs with shares need gpusage.

    Raises:
        RequestError: There are such jobs, or slurmctld does not answer.
    """
    try:
        jobs = [job for job in find_shared_jobs(("waiting", "running")) if not job.other_types]
    except RequestError as error:
        message = f"{error} Whether rewritten jobs still need gpusage cannot be seen; add --with-jobs to go on."
        raise RequestError(message) from error
    if jobs:
        names = ", ".join(job.job_id for job in jobs[:5]) + (" ..." if len(jobs) > 5 else "")  # a line
        message = (
            "No rewritten job may be pending or running when gpusage is removed: each needs cli_filter and the "
            f"task prolog until it ends; got {len(jobs)}: {names}. Run gpusage slurm drain --yes, or add --with-jobs."
        )
        raise RequestError(message)


def _remove_if_empty(folder: Path, *, yes: bool) -> None:
    with suppress(OSError):  # what somebody else has put there stays
        if yes:
            folder.rmdir()


def doctor(context: click.Context, slurm_conf: Path | None, *, as_json: bool) -> None:
    """Check the installation; each line passes, warns or fails, and says what to do."""
    evidence = collect_evidence(slurm_conf)
    findings, schema = run_checks(evidence), "gpusage.slurm.doctor/1"
    context.exit(show_findings(findings, evidence.own.configuration, schema=schema, as_json=as_json))


def status(*, as_json: bool) -> None:
    """Show what gpusaged sees: its mode, the cluster, and how many decisions it has made."""
    _, answer = find_status(local_socket_candidates())
    click.echo(json.dumps(answer, indent=1) if as_json else describe_status(answer))


def describe_status(status: Mapping[str, Any]) -> str:
    """Return the daemon's answer to a status question as a few lines of text."""
    return "\n".join((*daemon_lines(status), *cluster_lines(status, SLURM.name, SLURM.title, _feature)))


def _feature(pool: Mapping[str, Any]) -> str:
    named = f", feature {pool['feature']}" if pool["feature"] else ", no feature"
    if pool["site_type"] and not pool.get("exact_feature"):
        return f"{named}, none that is only theirs: whoever names the type gets a whole GPU"
    return named
