"""Who is at the other end of a Unix socket, and whether they may ask for submissions."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Iterable
from typing import Protocol

_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


class HasOptions(Protocol):
    """A socket, or asyncio's view of one."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """Return a socket option's bytes."""


def peer_uid(connection: HasOptions) -> int:
    """Return the user id of the process that connected, as the kernel saw it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return int(uid)


def allowed_uids(users: Iterable[str]) -> tuple[frozenset[int], tuple[str, ...]]:
    """Return the ids of *users* with the daemon's own, and the names that the host does not know."""
    uids, unknown = known_uids(users)
    return uids | {os.geteuid()}, unknown


def known_uids(users: Iterable[str]) -> tuple[frozenset[int], tuple[str, ...]]:
    """Return the ids of *users*, names or numbers, and the names that the host does not know."""
    uids: set[int] = set()
    unknown = []
    for user in users:
        if user.isascii() and user.isdigit():
            uids.add(int(user))
            continue
        try:
            uids.add(pwd.getpwnam(user).pw_uid)
        except (KeyError, ValueError):
            unknown.append(user)
    return frozenset(uids), tuple(unknown)
