"""What commands keep below the user's cache folder, so that the next call need not make it again."""

from __future__ import annotations

import os
import re
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
    try:
        with path.open(encoding="ascii") as file:
            text = file.read(MAXIMUM_CARD_CHARACTERS + 2).strip()
    except (OSError, ValueError):
        return None
    return text if _CARD.fullmatch(text) else None
