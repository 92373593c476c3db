"""A file that is written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

_RANDOM_BYTES = 8
_DEVICES = Path("/dev")
"""``/dev/stdout`` leads to a file where a shell sent it to one; more is to be printed there."""


def write_whole(path: Path, text: str) -> None:
    """Write *text* to *path* by way of a file beside it, so that nothing half-written is ever there.

    A link stays one, and what it leads to is written. A file that was there keeps its mode, so that what was private
    stays private, and its owner where we may give it away. A device or a pipe is written to, never replaced. Nobody who
    may write to the folder can foresee the draft's name, nor have a link of that name followed.

    Raises:
        OSError: *path* cannot be written; nothing is left beside it.
    """
    if path.exists() and (path.parent == _DEVICES or not path.is_file()):
        path.write_text(text, encoding="utf-8")
        return
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{path.name}.{secrets.token_hex(_RANDOM_BYTES)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            if path.exists():
                _keep_rights(file.fileno(), path.stat())
            file.write(text)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _keep_rights(draft: int, present: os.stat_result) -> None:
    with contextlib.suppress(PermissionError):
        os.fchown(draft, present.st_uid, present.st_gid)
    os.fchmod(draft, stat.S_IMODE(present.st_mode))
