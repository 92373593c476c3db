"""gpusage itself inside a sandbox: all of it switched on, its daemon running; for trials, demo, tests and benches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpusage.configuration import SiteMode
from gpusage.sandboxes import processes
from gpusage.service.client import ask
from gpusage_hooks.errors import RequestError
from gpusage_yarn.install import CALCULATOR, CLASSES, LISTENERS, PROCESSORS, RULES
from gpusage_yarn.sandbox.cluster import Sandbox
from gpusage_yarn.sandbox.layout import ClusterPlan

SITE_SETTINGS: Mapping[str, str] = {
    RULES: f"{CLASSES[RULES]},user-group",
    PROCESSORS: CLASSES[PROCESSORS],
    LISTENERS: CLASSES[LISTENERS],
    "gpusage.am.heartbeat-ms": "200",
}
SCHEDULER_SETTINGS: Mapping[str, str] = {CALCULATOR: CLASSES[CALCULATOR]}

_GPUSAGED = "gpusaged"
_START_LIMIT_S = 30.0
_POLL_S = 0.05


def with_gpusage(plan: ClusterPlan, jar: Path, mode: SiteMode) -> ClusterPlan:
    """Return *plan* with all of gpusage switched on."""
    return replace(
        plan,
        jar=jar,
        mode=mode,
        site_settings={**SITE_SETTINGS, **plan.site_settings},
        scheduler_settings={**SCHEDULER_SETTINGS, **plan.scheduler_settings},
    )


def start_daemon(sandbox: Sandbox) -> None:
    """Start gpusaged in place of one that runs, and wait until it has seen the cluster.

    Raises:
        RequestError: It does not come up.
    """
    stop_daemon(sandbox)
    log = sandbox.layout.log_file(_GPUSAGED)
    started = sandbox.run("sh", "-c", 'setsid "$@" >>"$0" 2>&1 & echo $!', str(log), _GPUSAGED)
    pid = int(started.stdout)
    sandbox.layout.pid_file(_GPUSAGED).write_text(str(pid), encoding="ascii")
    deadline_s = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline_s and processes.is_alive(pid):
        if _has_seen_the_cluster(sandbox):
            return
        time.sleep(_POLL_S)
    message = f"Daemon gpusaged must see the cluster within {_START_LIMIT_S:g} s; it did not. Look into {log}."
    raise RequestError(message)


def stop_daemon(sandbox: Sandbox) -> bool:
    """Stop gpusaged, and tell whether it ran."""
    pid = sandbox.pid(_GPUSAGED)
    if pid:
        processes.end([pid])
    return pid is not None


def _has_seen_the_cluster(sandbox: Sandbox) -> bool:
    try:
        status = ask(str(sandbox.layout.run / "gpusaged.sock"), {"v": 1, "op": "status"})
    except RequestError:
        return False
    return "yarn" in status.get("clusters", {})
