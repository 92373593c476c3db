"""Takes a sandbox down whose owner was killed: a process that waits at the other end of a pipe."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

_WAIT_FOR_OWNER = 'read -r _; record=$1; shift; [ ! -e "$record" ] || exec "$@"'


def start_guard(record: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that runs *command* once this one is gone, whatever ended it, if *record* is still there."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _WAIT_FOR_OWNER, "guard", str(record), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def dismiss(guard: subprocess.Popen[bytes]) -> None:
    """Let the guard go, once the sandbox is down."""
    if guard.stdin is not None:
        guard.stdin.close()
    guard.wait()
