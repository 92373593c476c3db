"""The file of a `History`: JSON that is checked against its types, and replaced as a whole.

Apart from `history`, so that commands which read no such file need not import msgspec.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from gpusage.boundary.atomic_file import atomic_write
from gpusage.experience.history import History
from gpusage_hooks.errors import RequestError

LARGEST_BYTES = 256 * 2**20


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal["gpusage.history/1"]
    history: History


def write_history(history: History, path: Path) -> None:
    """Write *history* to *path*.

    Raises:
        RequestError: The file cannot be written.
    """
    content = msgspec.json.encode(_Document(schema="gpusage.history/1", history=history))
    try:
        atomic_write(path, content.decode())
    except OSError as error:
        message = f"History {str(path)!r} must be a file that you may write; got: {error}. Name another one with -o."
        raise RequestError(message) from error


def read_history(path: Path) -> History | None:
    """Return what is at *path*; ``None`` where there is no file.

    Raises:
        RequestError: It is no history, or of another version, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        document = msgspec.json.decode(content, type=_Document)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        message = f"History {str(path)!r} must be what gpusage train --history writes; got: {error}. Train it again."
        raise RequestError(message) from error
    return document.history
