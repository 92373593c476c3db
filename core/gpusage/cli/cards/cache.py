"""Files below the user's cache folder. Others may be able to write there: only files of this user and root are read."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from gpusage.boundary.atomic_file import atomic_write, make_open_folder

_PACKAGE = Path(__file__).resolve().parents[2]
MAXIMUM_CARD_CHARACTERS = 16 * 1024
_CARD = re.compile(rf"[A-Za-z0-9+/=]{{1,{MAXIMUM_CARD_CHARACTERS}}}")


def user_cache() -> Path:
    """Return the folder of all cached files."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "gpusage"


def write_atomically(path: Path, text: str) -> None:
    """Write *text* atomically; without space or permission it is not cached."""
    with suppress(OSError):
        make_own_folder(path.parent)
        atomic_write(path, text, mode=0o600)


def write_for_all_users(path: Path, text: str) -> None:
    """Write *text* atomically, readable for every user, as are the folders that it creates.

    Raises:
        OSError: It cannot be written.
    """
    make_open_folder(path.parent)
    atomic_write(path, text, mode=0o644)


def read_card(path: Path) -> str | None:
    """Return the cached card at *path*, ``None`` if there is none."""
    text = (read_own(path, MAXIMUM_CARD_CHARACTERS + 2) or b"").decode("ascii", "replace").strip()
    return text if _CARD.fullmatch(text) else None


def read_own(path: Path, limit_bytes: int) -> bytes | None:
    """Return the content at *path*, ``None`` if anyone but this user and root may have written it."""
    with suppress(OSError), open(open_own(path, os.O_RDONLY, {0, os.geteuid()}), "rb") as file:
        return file.read(limit_bytes)
    return None


def make_own_folder(path: Path) -> None:
    """Create the folder *path* if it does not exist.

    Raises:
        OSError: It cannot be created, or belongs to another user, as does a link to it or the folder that it is in.
    """
    # Both the folder and a link to it must be the user's: a stranger could turn a link.
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    statuses = (path.stat(), path.lstat(), path.parent.stat(), path.parent.lstat())
    if not {each.st_uid for each in statuses} <= {0, os.geteuid()}:
        raise PermissionError(errno.EPERM, "another user's folder", str(path))


def open_own(path: Path, flags: int, owners: Collection[int]) -> int:
    """Open the file at *path*, where others may have put a file of theirs, a link or a FIFO.

    Raises:
        OSError: There is none, anyone but *owners* may have written it, it has a second link, or its folder belongs to
            another user, who could have renamed our files.
    """
    if not _is_owned(path.parent.stat(), (0, os.geteuid())):
        raise PermissionError(errno.EPERM, "not a folder of one's own", str(path.parent))

    # O_NONBLOCK: a FIFO of a stranger would make us wait; O_NOFOLLOW: a link could lead anywhere.
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    status = os.fstat(file)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1 and _is_owned(status, owners):
        return file
    os.close(file)
    raise PermissionError(errno.EPERM, "not a file of one's own", str(path))


def _is_owned(status: os.stat_result, owners: Collection[int]) -> bool:
    """Return whether nobody but *owners* can write to it."""
    return status.st_uid in owners and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def source_files(patterns: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """Yield the path, length and time of change of each of our source files that matches *patterns*."""
    for pattern in patterns:
        for each in sorted(_PACKAGE.glob(pattern)):
            if each.suffix in {".py", ".json"}:
                status = each.stat()
                yield str(each.relative_to(_PACKAGE)), status.st_size, status.st_mtime_ns
