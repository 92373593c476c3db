"""Files that are written atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

_RANDOM_BYTES = 8
_OWN_OUTPUT = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
"""``/dev/stdout`` leads to a file where a shell sent it to one, ``/dev/fd/63`` to a pipe; more may be printed there."""


def atomic_write(path: Path, text: str) -> None:
    """Write *text* to *path* through a temporary file, so that no reader sees a part of it.

    No link is followed: one that stands at *path* is replaced, for whoever may write to the folder may have put it
    there. A file that was there keeps its mode, so that what was private stays private, and its owner where we may give
    it away; but not a file that another user put into a folder in which everybody may write. A device or a pipe of
    one's own is written to, never replaced. Nobody can foresee the draft's name.

    Raises:
        OSError: *path* cannot be written; nothing is left beside it.
        UnicodeEncodeError: *text* has half of a character.
    """
    if path.exists() and any(path.parent.resolve() == folder.resolve() for folder in _OWN_OUTPUT):
        path.write_text(text, encoding="utf-8")
        return

    present: os.stat_result | None = None
    with contextlib.suppress(OSError):  # whoever writes the draft says what is wrong
        present = path.lstat()
    if present is not None and not stat.S_ISREG(present.st_mode) and not stat.S_ISLNK(present.st_mode):
        _write_to(path, text)
        return

    draft = path.with_name(f".{path.name}.{secrets.token_hex(_RANDOM_BYTES)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            if present is not None and _is_to_keep(path.parent, present):
                # Only root gives a file away; the mode is kept in any case.
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), present.st_uid, present.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(present.st_mode))
            file.write(text)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _write_to(path: Path, text: str) -> None:
    """Write to a device or a pipe, which must be our own or root's: another user's would take what is private."""
    if path.lstat().st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EPERM, "It is another user's pipe or device", str(path))

    try:
        # Without O_NONBLOCK, opening a pipe that nobody reads would wait for ever.
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "It is a pipe that nobody reads, or no file", str(path)) from error

    # A reader may be slow.
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _is_to_keep(folder: Path, present: os.stat_result) -> bool:
    """Return whether the rights of the file *present* in *folder* are those that its writer wants."""
    is_own = present.st_uid == os.geteuid() or not folder.stat().st_mode & stat.S_IWOTH
    return stat.S_ISREG(present.st_mode) and is_own
