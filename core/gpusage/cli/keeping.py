"""What commands keep below the user's cache folder, so that the next call need not make it again."""

from __future__ import annotations

import os
import re
import stat
import tempfile
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
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def kept_card(path: Path) -> str | None:
    """Return the card that was kept at *path*, ``None`` where there is none."""
    text = (kept(path, MAXIMUM_CARD_CHARACTERS + 2) or b"").decode("ascii", "replace").strip()
    return text if _CARD.fullmatch(text) else None


def kept(path: Path, limit_bytes: int) -> bytes | None:
    """Return what was kept at *path*; nothing where anyone but this user and root may have put it there.

    A shared cache folder may hold another user's file, a link or a FIFO.
    """
    with suppress(OSError), open(path, "rb", opener=_opened) as file:
        status = os.fstat(file.fileno())
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid()) and not shared:
            return file.read(limit_bytes)
    return None


def _opened(path: str, flags: int) -> int:
    """Open no link, and wait for no FIFO."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
