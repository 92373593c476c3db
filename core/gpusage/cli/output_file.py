"""The file that a command writes beside what it prints: a page, or JSON."""

from __future__ import annotations

from pathlib import Path

from gpusage.whole_file import write_whole
from gpusage_hooks.errors import RequestError


def write_output(path: Path, text: str) -> None:
    """Write *text* to *path*, whole or not at all.

    Raises:
        RequestError: *path* cannot be written.
    """
    try:
        write_whole(path, text)
    except OSError as error:
        message = f"Output {str(path)!r} must be a file that you may write; got: {error.strerror}. Name another one."
        raise RequestError(message) from error
