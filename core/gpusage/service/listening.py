"""The file of a Unix socket: taken over when stale, refused when it is somebody's.

Invariants:

1. A socket is bound, then given its rights, and only then listened at, so that nobody slips in before.
2. It lies where no stranger may put a file, and only the file itself is given rights, never what a link leads to.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpusage_hooks.errors import GpuUsageError, RequestError

_PROBE_S = 1.0
Identity = tuple[int, int]


def bind(path: Path, grant: Callable[[Path], object]) -> socket.socket:
    """Return a socket bound to *path*, at which nobody listens yet.

    Args:
        path: Where.
        grant: Gives those who may connect their right to the file.

    Raises:
        RequestError: Another file is at *path*, another daemon listens there, or the folder cannot be used.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _make_way(path)
        listening.bind(str(path))
        with held(path) as file:
            grant(file)
    except GpuUsageError:
        listening.close()
        raise
    except OSError as error:
        listening.close()
        message = f"Socket {str(path)!r} must be in a folder that gpusaged may write; got: {error}. Make the folder."
        raise RequestError(message) from error
    return listening


@contextmanager
def held(path: Path) -> Iterator[Path]:
    """Give a name of the file at *path* that stays its own, whatever others put there meanwhile.

    Raises:
        OSError: There is none.
    """
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        yield Path(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


def identity(path: Path) -> Identity | None:
    """Return what tells one file at *path* from another, ``None`` where there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def remove(path: Path, ours: Identity | None) -> None:
    """Remove the socket's file, unless somebody has put another in its place."""
    if ours is not None and identity(path) == ours:
        with suppress(OSError):
            path.unlink()


def _make_way(path: Path) -> None:
    """Remove a stale socket at *path*; refuse anything else, and a folder where any user may put a file."""
    if path.parent.stat().st_mode & stat.S_IWOTH:
        message = f"Socket {str(path)!r} must be in a folder of gpusaged's; got one that anyone may write. Use another."
        raise RequestError(message)
    try:
        kind = path.lstat().st_mode
    except OSError:
        return  # nothing there, or binding will say why not
    if not stat.S_ISSOCK(kind):
        message = f"Socket {str(path)!r} must be free or a socket; got another kind of file. Move it away."
        raise RequestError(message)
    if _answers(path):
        message = f"Socket {str(path)!r} must be free; got a process that listens there. Stop that gpusaged first."
        raise RequestError(message)
    path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    """Tell whether a process listens at *path*; one whose queue is full does, too."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True
