"""As which user a ResourceManager runs, where it runs on this host: gpusaged answers to whom it is told to only."""

from __future__ import annotations

import pwd
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpusage.configuration import DaemonSettings
from gpusage.service.peer import known_uids

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerUser:
    """Who asks gpusaged on this host, and whether it gets an answer."""

    name: str
    allowed: bool


def manager_user(address: str, daemon: DaemonSettings) -> ManagerUser | None:
    """Return the user of the ResourceManager at *address*, ``None`` where that is another host or cannot be told."""
    parts = urlsplit(address)
    port = parts.port or _PORTS.get(parts.scheme, 0)
    uid = listener_uid(port) if _is_here(parts.hostname or "") else None
    if uid is None:
        return None
    uids, _ = known_uids(daemon.allowed_users)
    return ManagerUser(name=_name(uid), allowed=uid in uids or uid == _owner(Path(daemon.socket)))


def listener_uid(port: int, tables: Sequence[Path] = _TABLES) -> int | None:
    """Return the user id of who listens at *port* of this host, as the kernel's tables of sockets have it."""
    for table in tables:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, _, _, _, uid, *_ = line.split()
            if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                return int(uid)
    return None


def _is_here(host: str) -> bool:
    """Tell whether *host* is this one: only its own addresses can be bound to."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, place) for family, _, _, _, place in addresses)


def _can_bind(family: int, place: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as own:
            own.bind(place)
    except OSError:
        return False
    return True


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
