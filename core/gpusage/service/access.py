"""Who may connect to a socket: its mode, with an access list of POSIX for users who are not its owner.

An owner without privileges can give no file to a group that it is not in, but it can name any user in the list. The
kernel then turns a stranger away before he takes a place in the queue of those who may ask.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Collection
from pathlib import Path

EVERYONE = 0o666
_OWNER = 0o600
_NAME = "system.posix_acl_access"
_VERSION, _ENTRY, _NOBODY = struct.Struct("<I"), struct.Struct("<HHI"), 0xFFFFFFFF
_READ_WRITE, _NOTHING = 6, 0
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20  # acl_ea.h of Linux

_log = logging.getLogger(__name__)


def open_to_everyone(path: Path) -> None:
    """Let every user of this host connect to the socket at *path*."""
    path.chmod(EVERYONE)


def keep_to(path: Path, uids: Collection[int]) -> None:
    """Let only *uids*, the owner and root connect to the socket at *path*.

    If the socket cannot have an access list, it is open to everyone: the workload manager must get in, even if
    strangers can too.
    """
    named = sorted({*uids} - {0, os.geteuid()})
    path.chmod(_OWNER)
    try:
        os.setxattr(path, _NAME, access_list(named))
    except OSError as error:
        if named:
            _log.warning("the socket is open to everyone, strangers are sent away at once: %s", error)
            open_to_everyone(path)


def access_list(uids: Collection[int]) -> bytes:
    """Return the list that lets the owner and *uids* read and write, as Linux keeps it beside a file."""
    entries = [
        (_USER_OBJ, _READ_WRITE, _NOBODY),
        *((_USER, _READ_WRITE, uid) for uid in sorted(uids)),
        (_GROUP_OBJ, _NOTHING, _NOBODY),
        (_MASK, _READ_WRITE, _NOBODY),
        (_OTHER, _NOTHING, _NOBODY),
    ]
    return _VERSION.pack(2) + b"".join(_ENTRY.pack(*entry) for entry in entries)
