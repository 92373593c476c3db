"""Changes to an admin's files: shown as a diff, made all or not at all."""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpusage_hooks.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One file before and after; ``None`` is a file that does not exist."""

    path: Path
    before: str | None
    after: str | None
    executable: bool = False

    @property
    def changes(self) -> bool:
        """Whether anything would be written."""
        return self.before != self.after

    def diff(self) -> str:
        """Return the change as `diff -u` shows it."""
        lines = difflib.unified_diff(
            (self.before or "").splitlines(keepends=True),
            (self.after or "").splitlines(keepends=True),
            str(self.path) if self.before is not None else os.devnull,
            str(self.path) if self.after is not None else os.devnull,
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def make_edits(edits: Iterable[Edit]) -> None:
    """Write every edit that changes something; where one fails, undo those before it.

    Raises:
        RequestError: A file cannot be written.
    """
    done: list[Edit] = []
    for edit in edits:
        try:
            _write(edit.path, edit.after, executable=edit.executable)
        except OSError as error:
            for earlier in reversed(done):
                _write(earlier.path, earlier.before, executable=earlier.executable)
            message = (
                f"File {str(edit.path)!r} must be writable; got: {error}. Run it as the owner; nothing was changed."
            )
            raise RequestError(message) from error
        done.append(edit)


def edit_of(path: Path, after: str | None, *, executable: bool = False) -> Edit:
    """Return the edit by which the file at *path* becomes *after*, which may be what it is."""
    return Edit(path=path, before=read_text(path), after=after, executable=executable)


def read_text(path: Path) -> str | None:
    """Return the text of a file with its line ends as they are, ``None`` where there is no file.

    Raises:
        RequestError: It cannot be read, or is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        message = f"File {str(path)!r} must be readable text; got: {error}. Run it as the owner, or mend the file."
        raise RequestError(message) from error


def _write(path: Path, text: str | None, *, executable: bool) -> None:
    """Put *text* in the place of *path* at once, its owner and mode kept."""
    if text is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    target = path.resolve()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        present = target.stat() if target.exists() else None
        Path(name).chmod(present.st_mode & 0o7777 if present else 0o755 if executable else 0o644)
        if present and (present.st_uid, present.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(name, present.st_uid, present.st_gid)
        Path(name).replace(target)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
