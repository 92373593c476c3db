"""The kill switch: if its file exists, every rewrite is off."""

from __future__ import annotations

from pathlib import Path


def kill_reason(path: str) -> str | None:
    """Return why nothing may be rewritten: a file at *path*, or that nobody can tell; ``None`` where there is none."""
    if not path:
        return None
    try:
        Path(path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"the kill switch {path} cannot be looked at ({error.strerror})"
    return f"the kill switch is on ({path})"
