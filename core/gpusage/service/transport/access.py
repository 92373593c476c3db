"""Who may connect to a socket, and who did: permissions with a POSIX access list, and the peer's user id.

An owner without privileges can give no file to a group that it is not in, but it can name any user in the list. The
kernel then rejects a stranger before it takes a place in the queue of those who may ask.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

EVERYONE = 0o666
_OWNER = 0o600
# The list's format is Linux's: struct posix_acl_xattr_header and _entry of include/uapi/linux/posix_acl_xattr.h.
_ATTRIBUTE = "system.posix_acl_access"
_VERSION, _ENTRY, _UNDEFINED_ID = struct.Struct("<I"), struct.Struct("<HHI"), 0xFFFFFFFF
_READ_WRITE, _NOTHING = 6, 0
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid

_log = logging.getLogger(__name__)


def allow_everyone(path: Path) -> None:
    """Let every user of this host connect to the socket at *path*."""
    path.chmod(EVERYONE)


def allow_only(path: Path, uids: Collection[int]) -> None:
    """Let only *uids*, the owner and root connect to the socket at *path*.

    If the socket cannot have an access list, it is open to everyone: the workload manager must get in, even if
    strangers can too.
    """
    named = sorted({*uids} - {0, os.geteuid()})
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
