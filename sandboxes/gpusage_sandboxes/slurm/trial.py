"""gpusage itself inside a sandbox: installed by its own installer, its daemon running; for demo, tests and benches."""

from __future__ import annotations

import re

from gpusage.settings.configuration import SiteMode
from gpusage_sandboxes.gpusaged import start_gpusaged, write_gpusage_toml
from gpusage_sandboxes.slurm.cluster import Sandbox

_SUBMISSIONS = re.compile(r"REQUEST_SUBMIT_BATCH_JOB .*total_time:(\d+)")


def install_plugin(sandbox: Sandbox, mode: SiteMode = "enforce", settings: str = "") -> None:
    """Install gpusage as an admin would, start gpusaged, and wait until it has seen the cluster.

    Args:
        sandbox: Running.
        mode: What gpusage may do.
        settings: Further lines of gpusage.toml; without any, the product's own defaults hold.

    Raises:
        RequestError: The installer refuses, or the daemon does not come up.
    """
    write_gpusage_toml(sandbox.layout, mode, settings)
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
    count = _SUBMISSIONS.search(sandbox.run("sdiag").stdout)
    return int(count[1]) / 1000 if count else 0.0
