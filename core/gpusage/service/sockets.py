"""A Unix socket with its file: a stale file is replaced, a deleted one is made again, and only its users may connect.

An owner without privileges can give no file to a group that it is not in, but it can name any user in a POSIX access
list. The kernel then rejects a stranger before it takes a place in the queue of those who may ask.

Invariants:

1. A socket is bound, then given its permissions, and only then listened at, so that nobody connects before.
2. It lies where no stranger may put a file, and only the file itself gets permissions, never the target of a link.
3. It is bound before anything is started, so that a daemon that cannot listen says so; served from `serve` on.
4. Another file in the socket's place is left alone.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from gpusage_hooks.errors import GpuUsageError, RequestError

EVERYONE = 0o666
_OWNER = 0o600
_PROBE_S = 1.0

# The list's format is Linux's: struct posix_acl_xattr_header and _entry of include/uapi/linux/posix_acl_xattr.h.
_ATTRIBUTE = "system.posix_acl_access"
_VERSION, _ENTRY, _UNDEFINED_ID = struct.Struct("<I"), struct.Struct("<HHI"), 0xFFFFFFFF
_READ_WRITE, _NOTHING = 6, 0
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
# struct ucred of unix(7): pid, uid, gid.
_CREDENTIALS = struct.Struct("3i")

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
        """Recreate the file if it was deleted."""
        present = _file_identity(self.path)
        if self._serve is None or present is not None:
            # Logged once: clients do not notice that another process has replaced the socket.
            if present not in (None, self._identity, self._reported):
                _log.warning("socket %s is not ours any more; remove what is there, and it is made again", self.path)
            self._reported = present
            return

        # The old socket serves on until the new one does.
        old = self._socket
        try:
            self._bind()
        except GpuUsageError as error:  # its folder is gone, too: perhaps it comes back
            _log.warning("the socket was deleted and cannot be made again: %s", error)
            return
        await self._serve(self._socket)
        old.close()
        _log.warning("socket %s was deleted; it is there again", self.path)

    def _bind(self) -> None:
        """Bind a new socket to the path, at which nobody listens yet."""
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_stale(self.path)
            bound.bind(str(self.path))
            with _pinned(self.path) as file:
                self._set_permissions(file)
        except GpuUsageError:
            bound.close()
            raise
        except OSError as error:
            bound.close()
            message = (
                f"Socket {str(self.path)!r} must be in a folder that gpusaged may write; got: {error}. Make the folder."
            )
            raise RequestError(message) from error

        self._socket, self._identity = bound, _file_identity(self.path)


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

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        has_listener = True
        try:
            probe.connect(str(path))
        except OSError as error:
            # Any other error is of a process that listens, such as a full queue.
            has_listener = error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    if has_listener:
        message = f"Socket {str(path)!r} must be free; got a process that listens there. Stop that gpusaged first."
        raise RequestError(message)
    path.unlink(missing_ok=True)


def allow_everyone(path: Path) -> None:
    """Let every user of this host connect to the socket at *path*."""
    path.chmod(EVERYONE)


def allow_only(path: Path, uids: Collection[int]) -> None:
    """Let only *uids*, the owner and root connect to the socket at *path*.

    If the socket cannot have an access list, it is open to everyone: the workload manager must get in, even if
    strangers can too.
    """
    named = sorted({*uids} - {0, os.geteuid()})
    # Nobody else may connect while the list is being written.
    path.chmod(_OWNER)
    try:
        os.setxattr(path, _ATTRIBUTE, encode_access_list(named))
    except OSError as error:
        if named:
            _log.warning("the socket is open to everyone, strangers are sent away at once: %s", error)
            allow_everyone(path)


def encode_access_list(uids: Collection[int]) -> bytes:
    """Return the access list that lets the owner and *uids* read and write, as Linux's extended attribute has it."""
    entries = [
        (_USER_OBJ, _READ_WRITE, _UNDEFINED_ID),
        *((_USER, _READ_WRITE, uid) for uid in sorted(uids)),
        (_GROUP_OBJ, _NOTHING, _UNDEFINED_ID),
        (_MASK, _READ_WRITE, _UNDEFINED_ID),
        (_OTHER, _NOTHING, _UNDEFINED_ID),
    ]
    return _VERSION.pack(2) + b"".join(_ENTRY.pack(*entry) for entry in entries)


class HasOptions(Protocol):
    """A socket, or asyncio's view of one."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """Return a socket option's bytes."""


def peer_uid(connection: HasOptions) -> int:
    """Return the user id of the process that connected, as the kernel saw it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return int(uid)
