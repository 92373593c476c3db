"""A file that is written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write *text* to *path* by way of a file beside it, so that nothing half-written is ever there.

    A link stays one, and what it leads to is written. A device or a pipe is written to, never replaced.

    Raises:
        OSError: *path* cannot be written; nothing is left beside it.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
