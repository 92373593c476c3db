"""The file of a site's history: JSON that is checked against its types; no pickle.

Invariants:

1. It is replaced as a whole, and holds digests and figures, no names.
2. What is no such file, or of another version, is one sentence, and no history.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpusage.history.history import History
from gpusage.whole_file import write_whole
from gpusage_hooks.errors import RequestError

SCHEMA = "gpusage.history/1"
LARGEST_BYTES = 256 * 2**20


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: str
    history: History


def write_history(history: History, path: Path) -> None:
    """Write *history* to *path*.

    Raises:
        RequestError: The file cannot be written.
    """
    content = msgspec.json.encode(_Document(schema=SCHEMA, history=history))
    try:
        write_whole(path, content.decode())
    except OSError as error:
        message = f"History {str(path)!r} must be a file that you may write; got: {error}. Name another one with -o."
        raise RequestError(message) from error


def read_history(path: Path) -> History | None:
    """Return what is at *path*; ``None`` where there is no file.

    Raises:
        RequestError: It is no history, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        document = msgspec.json.decode(content, type=_Document)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _refusal(path, str(error)) from error
    if document.schema != SCHEMA:
        raise _refusal(path, document.schema)
    return document.history


def _refusal(path: Path, what: str) -> RequestError:
    message = f"History {str(path)!r} must be what gpusage train --history writes; got: {what}. Train it again."
    return RequestError(message)
