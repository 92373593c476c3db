"""Files that are written atomically."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import secrets
import stat
from functools import partial
from pathlib import Path

_RANDOM_BYTES = 8
_FOLDER_MODE = 0o755
_OWN_OUTPUT = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
"""``/dev/stdout`` may lead to a redirected file, ``/dev/fd/63`` to a pipe; other output may follow there."""


def atomic_write(path: Path, text: str, *, mode: int | None = None, is_admins: bool = False) -> None:
    """Write *text* to *path* through a temporary file, so that no reader sees a part of it.

    A link at *path* is replaced, never followed. A present file keeps its mode, and its owner where this process may
    set it. A device or a pipe of the user is written to, never replaced. With a *mode* the file is new, and has that.

    An admin's file keeps its owner or stays as it is, a power cut leaves its old or its new text, and the drafts of
    processes that were killed go.

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

    # In a folder such as /tmp another user may have put the file there, with rights of that user's choice.
    if present is not None and (mode is not None or not stat.S_ISREG(present.st_mode)):
        present = None
    if present is not None and not is_admins and present.st_uid != os.geteuid():
        present = None if path.parent.stat().st_mode & stat.S_IWOTH else present

    # Rights before text are not enough: who has opened the draft before it gets its rights goes on reading.
    opener = partial(os.open, mode=0o666 if mode is None and present is None else 0o600)

    # Nobody can foresee this name, and "x" never opens a file or a link that is there already.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(_RANDOM_BYTES)}")
    if is_admins:
        for old in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 2 * _RANDOM_BYTES}"):
            old.unlink(missing_ok=True)
    try:
        # newline="" leaves an admin's line ends.
        with open(draft, "x", encoding="utf-8", newline="", opener=opener) as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            elif present is not None:
                _copy_rights(file.fileno(), present, is_admins=is_admins)
            file.write(text)
            if is_admins:
                # Without fsync a power cut may leave the new name with an empty file.
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:  # an interrupt leaves no draft either
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    if is_admins:
        sync_folder(path.parent)


def make_open_folder(folder: Path) -> None:
    """Make *folder* and its parents where they are missing, open to everyone whatever the umask."""
    if not folder.is_dir():
        make_open_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(_FOLDER_MODE)


def sync_folder(folder: Path) -> None:
    """Have the names in *folder* on the disk, which has an fsync of its own for them."""
    with contextlib.suppress(OSError):  # some network file systems refuse it
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _copy_rights(draft: int, present: os.stat_result, *, is_admins: bool) -> None:
    """Give *draft* the owner and the mode of the file *present*."""
    # Owner before mode: fchown clears the set-user-ID bits.
    try:
        os.fchown(draft, present.st_uid, present.st_gid)
    except PermissionError as error:
        if is_admins:
            owner = f"user {present.st_uid} and group {present.st_gid}"
            message = f"it belongs to {owner}, to whom this user may not give a file"
            raise PermissionError(message) from error
    os.fchmod(draft, stat.S_IMODE(present.st_mode))


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
