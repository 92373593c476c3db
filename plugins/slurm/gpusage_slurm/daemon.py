"""gpusaged as other commands see it: the sockets at which it may listen, and its status for people.

The configuration may be broken while gpusaged runs on with the last good one; job_submit.lua still names its socket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gpusage.cli.status import cluster_lines, daemon_lines
from gpusage.settings.configuration import Configuration, DaemonSettings
from gpusage.settings.configuration_file import load_configuration
from gpusage_hooks.errors import GpuUsageError
from gpusage_slurm.install.lua_scripts import find_block
from gpusage_slurm.install.plan import find_site
from gpusage_slurm.settings import SLURM

_SOCKET = re.compile(r'socket = "([^"]*)"')
_NUMBER = re.compile(rb"\\(\d{3})")


def socket_candidates(configuration: Configuration | None, job_submit: str) -> tuple[str, ...]:
    """Return the sockets where gpusaged may listen, the likeliest first; *job_submit* is the text of job_submit.lua."""
    ours = (configuration.daemon.socket,) if configuration else ()
    configured = _SOCKET.search(find_block(job_submit) or "")
    return tuple(
        dict.fromkeys((*ours, *((_unquote_lua(configured[1]),) if configured else ()), DaemonSettings().socket))
    )


def local_socket_candidates() -> tuple[str, ...]:
    """Return the sockets where gpusaged may listen by this host's files."""
    configuration, script = None, ""
    with suppress(GpuUsageError):
        configuration = load_configuration()
    with suppress(GpuUsageError, OSError):
        script = (find_site().folder / "job_submit.lua").read_text(encoding="utf-8", errors="replace")
    return socket_candidates(configuration, script)


def _unquote_lua(text: str) -> str:
    """Return what `lua.quoted` wrote."""
    return _NUMBER.sub(lambda match: bytes([int(match[1])]), text.encode()).decode("utf-8", "replace")


def describe_status(status: Mapping[str, Any]) -> str:
    """Return the daemon's answer to a status question as a few lines of text."""
    return "\n".join((*daemon_lines(status), *cluster_lines(status, SLURM.name, SLURM.title, _feature)))


def _feature(pool: Mapping[str, Any]) -> str:
    named = f", feature {pool['feature']}" if pool["feature"] else ", no feature"
    if pool["site_type"] and not pool.get("exact_feature"):
        return f"{named}, none that is only theirs: whoever names the type gets a whole GPU"
    return named
