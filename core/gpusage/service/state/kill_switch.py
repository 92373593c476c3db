"""The kill switch: while its file exists, no job is rewritten."""

from __future__ import annotations

from pathlib import Path


def kill_reason(path: str) -> str | None:
    """Return why nothing may be rewritten: *path* exists, or cannot be checked; ``None`` where it does not exist."""
    if not path:
        return None
    try:
        Path(path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"the kill switch {path} cannot be read ({error.strerror})"
    return f"the kill switch is on ({path})"
