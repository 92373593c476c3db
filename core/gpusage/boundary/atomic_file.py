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
"""``/dev/stdout`` may lead to a redirected file, ``/dev/fd/63`` to a pipe; other output may follow there."""


def atomic_write(path: Path, text: str, *, mode: int | None = None) -> None:
    """Write *text* to *path* through a temporary file, so that no reader sees a part of it.

    A link at *path* is replaced, never followed. A present file keeps its mode, and its owner where this process may
    set it. A device or a pipe of the user is written to, never replaced. With a *mode* the file is new, and has that.

    Raises:
        OSError: *path* cannot be written; no draft is left beside it.
        UnicodeEncodeError: *text* has half of a character.
    """
    if path.exists() and any(path.parent.resolve() == folder.resolve() for folder in _OWN_OUTPUT):
        path.write_text(text, encoding="utf-8")
        return

    # The link itself, not its target: whoever may write to the folder may have put it there.
    present = None
    with contextlib.suppress(OSError):  # opening the draft raises the same error, with the draft's name
        present = path.lstat()
    if present is not None and not stat.S_ISREG(present.st_mode) and not stat.S_ISLNK(present.st_mode):
        _write_to(path, text)
        return

    # Nobody can foresee this name, and "x" never opens a file or a link that is there already.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(_RANDOM_BYTES)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            elif present is not None and stat.S_ISREG(present.st_mode):
                # In a folder such as /tmp another user may have put the file there, with rights of that user's choice.
                is_own = present.st_uid == os.geteuid() or not path.parent.stat().st_mode & stat.S_IWOTH
                if is_own:
                    # Owner before mode: fchown clears the set-user-ID bits. Rights before text: a private text is
                    # never readable, not even in the draft.
                    with contextlib.suppress(PermissionError):
                        os.fchown(file.fileno(), present.st_uid, present.st_gid)
                    os.fchmod(file.fileno(), stat.S_IMODE(present.st_mode))
            file.write(text)
        draft.replace(path)
    except BaseException:  # an interrupt leaves no draft either
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _write_to(path: Path, text: str) -> None:
    """Write to a device or a pipe of our own or of root."""
    # Another user's pipe would hand a private text to that user.
    if path.lstat().st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EPERM, "It is another user's pipe or device", str(path))

    # Non-blocking, because opening a pipe without a reader would wait for good; ENXIO reports it instead.
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "It is a pipe that nobody reads, or no file", str(path)) from error

    # Blocking again, because a reader may be slow.
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
