"""How a Slurm sandbox comes into being, and gpusage in it, by its own installer."""

from __future__ import annotations

import re
import secrets
import socket
from pathlib import Path

from gpusage.boundary.operating_system import user_name
from gpusage.settings.configuration import SiteMode
from gpusage_sandboxes.gpusaged import start_gpusaged, write_gpusage_toml
from gpusage_sandboxes.host import Report, free_ports, private_folder, silent
from gpusage_sandboxes.layout import write_record
from gpusage_sandboxes.sandbox import down_on_failure
from gpusage_sandboxes.slurm.accounting import lay_out_accounting
from gpusage_sandboxes.slurm.cluster import Record, Sandbox
from gpusage_sandboxes.slurm.installation import prepare_installation
from gpusage_sandboxes.slurm.layout import (
    ClusterPlan,
    Host,
    Layout,
    render_cgroup_conf,
    render_gres_conf,
    render_slurm_conf,
)

_DEVICE = "/dev/null"  # a character device that every Linux has; the sandbox's GPUs are links to it


def start_sandbox(
    plan: ClusterPlan, *, folder: Path | None = None, release: str | None = None, report: Report = silent
) -> Sandbox:
    """Return a new sandbox in *folder* (a temporary one where ``None``) of *release* (the host's own where ``None``).

    Raises:
        RequestError: The folder is not empty, the release cannot be had, or a daemon does not come up.
    """
    installation = prepare_installation(release, accounting=plan.accounting, report=report)
    layout = Layout(folder=private_folder(folder, plan.longest_folder))
    sandbox = Sandbox(layout=layout, installation=installation)
    with down_on_failure(sandbox, report):
        _lay_out(plan, sandbox)
        sandbox.start()
    return sandbox


def _lay_out(plan: ClusterPlan, sandbox: Sandbox) -> None:
    """Write everything that the daemons read."""
    layout, installation = sandbox.layout, sandbox.installation
    write_record(layout, Record(installation=str(installation.folder)))

    folders = (layout.etc, layout.logs, layout.run, layout.jobs, layout.state / "slurmctld")
    for folder in (*folders, *(place / node.name for node in plan.nodes for place in (layout.spool, layout.gpus))):
        folder.mkdir(parents=True)

    for node in plan.nodes:
        for number in range(node.gpu_count + sum(count for _, count in node.other_gpus)):
            (layout.gpus / node.name / f"gpu{number}").symlink_to(_DEVICE)

    key = layout.state / "munge.key"
    # Before it is written: munged refuses a key that others may read, if only for a moment.
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    host = Host(user=user_name(), hostname=socket.gethostname(), ports=free_ports(2 + len(plan.nodes)))
    text = render_slurm_conf(plan, layout, installation, host)
    if plan.accounting:
        text += lay_out_accounting(layout, installation, host)
    layout.slurm_conf.write_text(text, encoding="utf-8")
    (layout.etc / "gres.conf").write_text(render_gres_conf(plan, layout), encoding="utf-8")
    (layout.etc / "cgroup.conf").write_text(render_cgroup_conf(installation.major_minor), encoding="utf-8")
    write_settings(sandbox, "observe")


def write_settings(sandbox: Sandbox, mode: SiteMode, settings: str = "") -> None:
    """Write gpusage.toml; a Slurm that books GPUs twice shares them all the same, for that is what is tried."""
    if sandbox.installation.major_minor < (23, 11):
        before, _, after = settings.rpartition("[slurm]\n")
        settings = f"{before}{_ACCEPTED}{after}"
    write_gpusage_toml(sandbox.layout, mode, settings)


_ACCEPTED = "[slurm]\naccept_double_booking = true  # nobody is hurt here; docs/slurm.md, 'Several users on a GPU'\n"


def install_plugin(sandbox: Sandbox, mode: SiteMode = "enforce", settings: str = "") -> None:
    """Install gpusage as an admin would, start gpusaged, and wait until it has seen the cluster.

    Args:
        sandbox: Running.
        mode: What gpusage may do.
        settings: Further lines of gpusage.toml; without any, the product's own defaults hold.

    Raises:
        RequestError: The installer refuses, or the daemon does not come up.
    """
    write_settings(sandbox, mode, settings)
    sandbox.run("gpusage", "slurm", "install", "--nodes-ready", "--yes")
    sandbox.reconfigure()
    if sandbox.layout.slurmdbd_conf.exists():
        sandbox.restart_controller()  # before 23.11, only that makes it count what is new in AccountingStorageTRES
        sandbox.wait_for_nodes()
    start_gpusaged(sandbox)


def submission_time_ms(sandbox: Sandbox) -> float:
    """Return what slurmctld has spent on batch submissions so far, in all, by its own count.

    The time that its log shows for a submission begins only after job_submit has run.
    """
    count = re.search(r"REQUEST_SUBMIT_BATCH_JOB .*total_time:(\d+)", sandbox.run("sdiag").stdout)
    return int(count[1]) / 1000 if count else 0.0
