"""Where gpusaged is to be found: where our configuration says, where slurmctld's script asks, or at the usual place.

The configuration may be broken while the daemon goes on with the last good one; slurmctld asks there all the same.
"""

from __future__ import annotations

import re
from contextlib import suppress

from gpusage.configuration import Configuration, DaemonSettings
from gpusage.configuration_file import load_configuration
from gpusage_hooks.errors import GpuUsageError
from gpusage_slurm.installing.install import find_site
from gpusage_slurm.installing.lua_block import block_of

_SOCKET = re.compile(r'socket = "([^"]*)"')
_NUMBER = re.compile(rb"\\(\d{3})")


def sockets(configuration: Configuration | None, job_submit: str) -> tuple[str, ...]:
    """Return where gpusaged may listen, the likeliest first; *job_submit* is the text of job_submit.lua."""
    ours = (configuration.daemon.socket,) if configuration else ()
    asked = _SOCKET.search(block_of(job_submit) or "")
    return tuple(dict.fromkeys((*ours, *((_unquoted(asked[1]),) if asked else ()), DaemonSettings().socket)))


def local_sockets() -> tuple[str, ...]:
    """Return where this host's files say that gpusaged may listen."""
    configuration, script = None, ""
    with suppress(GpuUsageError):
        configuration = load_configuration()
    with suppress(GpuUsageError, OSError):
        script = (find_site().folder / "job_submit.lua").read_text(encoding="utf-8", errors="replace")
    return sockets(configuration, script)


def _unquoted(text: str) -> str:
    """Return what `lua.quoted` wrote."""
    return _NUMBER.sub(lambda match: bytes([int(match[1])]), text.encode()).decode("utf-8", "replace")
