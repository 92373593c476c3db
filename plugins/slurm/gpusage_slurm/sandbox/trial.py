"""gpusage itself inside a sandbox: installed by its own installer, its daemon running; for demo, tests and benches."""

from __future__ import annotations

import re
import time

from gpusage.configuration import SiteMode
from gpusage.sandboxes import processes
from gpusage.service import client
from gpusage_hooks.errors import RequestError
from gpusage_slurm.sandbox.cluster import Sandbox
from gpusage_slurm.sandbox.layout import render_gpusage_toml

_START_LIMIT_S = 20.0
_POLL_S = 0.05
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
    text = render_gpusage_toml(sandbox.layout, mode, settings)
    (sandbox.layout.etc / "gpusage.toml").write_text(text, encoding="utf-8")
    sandbox.run("gpusage", "slurm", "install", "--nodes-ready", "--yes")
    sandbox.reconfigure()
    start_daemon(sandbox)


def start_daemon(sandbox: Sandbox, *prefix: str) -> int:
    """Start gpusaged, wait until it has seen the cluster, and return its process id.

    Args:
        sandbox: Where gpusage is installed.
        prefix: Words before the command, for example ``prlimit --fsize=4096``.

    Raises:
        RequestError: It does not come up.
    """
    log = sandbox.layout.log_file("gpusaged")
    started = sandbox.run("sh", "-c", 'setsid "$@" >>"$0" 2>&1 & echo $!', str(log), *prefix, "gpusaged")
    pid = int(started.stdout)
    sandbox.layout.pid_file("gpusaged").write_text(str(pid), encoding="ascii")
    deadline_s = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline_s and processes.is_alive(pid):
        if _has_seen_the_cluster(sandbox):
            return pid
        time.sleep(_POLL_S)
    last = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
    message = f"Daemon gpusaged must see the cluster within {_START_LIMIT_S:g} s; it did not: {last}. Look into {log}."
    raise RequestError(message)


def socket_path(sandbox: Sandbox) -> str:
    """Return where the sandbox's gpusaged listens."""
    return str(sandbox.layout.run / "gpusaged.sock")


def submission_time_ms(sandbox: Sandbox) -> float:
    """Return what slurmctld has spent on batch submissions so far, in all, by its own count.

    The time that its log shows for a submission begins only after job_submit has run.
    """
    found = _SUBMISSIONS.search(sandbox.run("sdiag").stdout)
    return int(found[1]) / 1000 if found else 0.0


def _has_seen_the_cluster(sandbox: Sandbox) -> bool:
    try:
        status = client.status(socket_path(sandbox))
    except RequestError:
        return False
    return "slurm" in status.get("clusters", {})
