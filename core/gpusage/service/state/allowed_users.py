"""The users who may ask for decisions, by their ids."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable


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
