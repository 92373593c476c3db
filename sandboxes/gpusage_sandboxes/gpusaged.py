"""gpusaged in a sandbox: its configuration, its start and its end."""

from __future__ import annotations

import json
import time
from contextlib import suppress

from gpusage.boundary.operating_system import user_name
from gpusage.service import client
from gpusage.settings.configuration import SiteMode
from gpusage_hooks.errors import RequestError
from gpusage_sandboxes import processes
from gpusage_sandboxes.layout import Layout
from gpusage_sandboxes.sandbox import Sandbox

DAEMON = "gpusaged"
_START_LIMIT_S = 300.0
"""A loaded machine takes many seconds to import what it needs."""
_POLL_S = 0.05


def render_gpusage_toml(layout: Layout, mode: SiteMode | None = None, settings: str = "") -> str:
    """Return gpusage's own configuration: nothing of it lies outside the folder.

    Args:
        layout: Of the sandbox.
        mode: What gpusage may do; left out where ``None``.
        settings: Further lines.
    """
    return (
        (f'mode = "{mode}"\n' if mode else "") + f"kill_switch = {json.dumps(str(layout.etc / 'off'))}\n"
        f"[daemon]\nsocket = {json.dumps(str(layout.socket))}\nrefresh_s = 1\n"
        f"allowed_users = {json.dumps(['root', user_name()])}\n"
        f"[store]\nurl = {json.dumps(f'sqlite:///{layout.state}/decisions.db')}\n{settings}"
    )


def write_gpusage_toml(layout: Layout, mode: SiteMode | None = None, settings: str = "") -> None:
    """Write what `render_gpusage_toml` returns."""
    layout.gpusage_toml.write_text(render_gpusage_toml(layout, mode, settings), encoding="utf-8")


def start_gpusaged(sandbox: Sandbox, *prefix: str) -> int:
    """Start gpusaged in place of one that runs, wait until it has seen the cluster, and return its process id.

    Args:
        sandbox: Where gpusage is configured.
        prefix: Words before the command, for example ``prlimit --fsize=4096``.

    Raises:
        RequestError: It does not come up.
    """
    stop_gpusaged(sandbox)
    log = sandbox.layout.log_file(DAEMON)
    started = sandbox.run("sh", "-c", 'setsid "$@" >>"$0" 2>&1 & echo $!', str(log), *prefix, DAEMON)
    pid = int(started.stdout)
    sandbox.layout.pid_file(DAEMON).write_text(str(pid), encoding="ascii")
    deadline_s = time.monotonic() + _START_LIMIT_S

    while time.monotonic() < deadline_s and processes.is_alive(pid):
        with suppress(RequestError):  # it does not listen yet
            if sandbox.manager in client.status(str(sandbox.layout.socket)).get("clusters", {}):
                return pid
        time.sleep(_POLL_S)

    last_line = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
    message = f"Daemon {DAEMON} must see the cluster within {_START_LIMIT_S:g} s; got: {last_line}. Look into {log}."
    raise RequestError(message)


def stop_gpusaged(sandbox: Sandbox) -> None:
    """Stop gpusaged where it runs."""
    pid = sandbox.pid(DAEMON)
    if pid:
        processes.end([pid])
