"""What commands keep below the user's cache folder, so that the next call need not make it again."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

MAXIMUM_CARD_CHARACTERS = 16 * 1024
_CARD = re.compile(rf"[A-Za-z0-9+/=]{{1,{MAXIMUM_CARD_CHARACTERS}}}")


def user_cache() -> Path:
    """Return the folder of all that is kept."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "gpusage"


def keep(path: Path, content: bytes) -> None:
    """Write *content* at once or not at all; a full disk only means that it is made again."""
    with suppress(OSError):
        own_folder(path.parent)
        _write(path, content, mode=0o600)


def keep_for_all(path: Path, content: bytes) -> None:
    """Write *content* where every user may read it, also the folders that are made for it.

    Raises:
        OSError: It cannot be written.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir()
        folder.chmod(0o755)  # whatever the umask
    _write(path, content, mode=0o644)


def _write(path: Path, content: bytes, *, mode: int) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def kept_card(path: Path) -> str | None:
    """Return the card that was kept at *path*, ``None`` where there is none."""
    text = (cached(path, MAXIMUM_CARD_CHARACTERS + 2) or b"").decode("ascii", "replace").strip()
    return text if _CARD.fullmatch(text) else None


def cached(path: Path, limit_bytes: int) -> bytes | None:
    """Return what was kept at *path*; nothing where anyone but this user and root may have put it there."""
    with suppress(OSError), open(open_own(path, os.O_RDONLY, {0, os.geteuid()}), "rb") as file:
        return file.read(limit_bytes)
    return None


def own_folder(path: Path) -> None:
    """Make the folder *path*, where it is not there.

    Raises:
        OSError: It cannot be made, or is another user's.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EPERM, "another user's folder", str(path))


def open_own(path: Path, flags: int, owners: Collection[int]) -> int:
    """Open the file at *path*, in a folder where others may have put a file of theirs, a link or a FIFO.

    Raises:
        OSError: There is none, or anyone but *owners* may have written it, or it has another name as well, or its
            folder is another user's, who may have changed the names of our files there.
    """
    if not _ours(path.parent.stat(), (0, os.geteuid())):
        raise PermissionError(errno.EPERM, "not a folder of one's own", str(path.parent))
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    status = os.fstat(file)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1 and _ours(status, owners):
        return file
    os.close(file)
    raise PermissionError(errno.EPERM, "not a file of one's own", str(path))


def _ours(status: os.stat_result, owners: Collection[int]) -> bool:
    """Tell whether nobody but *owners* may write there."""
    return status.st_uid in owners and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
