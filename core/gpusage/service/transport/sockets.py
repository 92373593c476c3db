"""A Unix socket with its file and its server: a stale file is replaced, and one that somebody deletes is made again.

Invariants:

1. A socket is bound, then given its permissions, and only then listened at, so that nobody connects before.
2. It lies where no stranger may put a file, and only the file itself gets permissions, never what a link leads to.
3. It is bound before anything is started, so that a daemon that cannot listen says so; served from `serve` on.
4. What others put in the file's place is left alone.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpusage_hooks.errors import GpuUsageError, RequestError

_PROBE_S = 1.0
FileIdentity = tuple[int, int]
Serve = Callable[[socket.socket], Awaitable[None]]
_log = logging.getLogger(__name__)


class ServerSocket:
    """One socket and its file.

    Args:
        path: Of the file.
        set_permissions: Lets those connect to the file who may.

    Raises:
        RequestError: Another file is at *path*, another daemon listens there, or the folder cannot be used.
    """

    def __init__(self, path: Path, set_permissions: Callable[[Path], object]) -> None:
        self.path = path
        self._set_permissions = set_permissions
        self._serve: Serve | None = None
        self._reported: FileIdentity | None = None
        self._bind()

    def close(self) -> None:
        """Remove the file, unless somebody has put another in its place."""
        if self._identity is not None and _file_identity(self.path) == self._identity:
            with suppress(OSError):
                self.path.unlink()
        self._socket.close()

    async def serve(self, serve: Serve) -> None:
        """Have *serve* accept connections; it is called again with the socket that replaces a deleted one."""
        self._serve = serve
        await serve(self._socket)

    def update_permissions(self) -> None:
        """Set the permissions of today, where the file is still ours."""
        with suppress(OSError), _pinned(self.path) as file:
            status = file.stat()
            if (status.st_dev, status.st_ino) == self._identity:
                self._set_permissions(file)

    async def restore(self) -> None:
        """Make the file again, where it is gone."""
        present = _file_identity(self.path)
        if self._serve is None or present is not None:
            self._report_replaced(present)
            return
        old = self._socket
        try:
            self._bind()
        except GpuUsageError as error:  # its folder is gone, too: perhaps it comes back
            _log.warning("the socket was deleted and cannot be made again: %s", error)
            return
        await self._serve(self._socket)
        old.close()
        _log.warning("socket %s was deleted; it is there again", self.path)

    def _report_replaced(self, present: FileIdentity | None) -> None:
        """Log once that clients reach somebody else; nobody else would notice."""
        if present not in (None, self._identity, self._reported):
            _log.warning("socket %s is not ours any more; remove what stands there, and it is made again", self.path)
        self._reported = present

    def _bind(self) -> None:
        self._socket = _bound_socket(self.path, self._set_permissions)
        self._identity = _file_identity(self.path)


def _bound_socket(path: Path, set_permissions: Callable[[Path], object]) -> socket.socket:
    """Return a socket bound to *path*, at which nobody listens yet."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        bound.bind(str(path))
        with _pinned(path) as file:
            set_permissions(file)
    except GpuUsageError:
        bound.close()
        raise
    except OSError as error:
        bound.close()
        message = f"Socket {str(path)!r} must be in a folder that gpusaged may write; got: {error}. Make the folder."
        raise RequestError(message) from error
    return bound


@contextmanager
def _pinned(path: Path) -> Iterator[Path]:
    """Yield a path that leads to the file at *path*, whatever others put there meanwhile.

    Raises:
        OSError: There is none.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _file_identity(path: Path) -> FileIdentity | None:
    """Return device and inode of the file at *path*, ``None`` where there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _remove_stale(path: Path) -> None:
    """Remove a stale socket at *path*; refuse anything else, and a folder where any user may put a file."""
    if path.parent.stat().st_mode & stat.S_IWOTH:
        message = f"Socket {str(path)!r} must be in a folder of gpusaged's; got one that anyone may write. Use another."
        raise RequestError(message)
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # nothing there, or binding will say why not
    if not stat.S_ISSOCK(mode):
        message = f"Socket {str(path)!r} must be free or a socket; got another kind of file. Move it away."
        raise RequestError(message)
    if _has_listener(path):
        message = f"Socket {str(path)!r} must be free; got a process that listens there. Stop that gpusaged first."
        raise RequestError(message)
    path.unlink(missing_ok=True)


def _has_listener(path: Path) -> bool:
    """Return whether a process listens at *path*; one whose queue is full does, too."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True
