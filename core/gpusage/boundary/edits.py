"""Changes to an admin's files: printed as a diff, and made all or not at all."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpusage.boundary.atomic_file import atomic_write, make_open_folder, sync_folder
from gpusage_hooks.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A file before and after; ``None`` is a file that does not exist.

    Attributes:
        mode: Mode of a new file; a present file keeps its own.
        summary: Text in place of the diff.
    """

    path: Path
    before: str | None
    after: str | None
    mode: int = 0o644
    summary: str | None = None

    @property
    def changes(self) -> bool:
        """Whether the edit changes the file."""
        return self.before != self.after

    def diff(self) -> str:
        """Return the change as `diff -u` shows it, or its summary."""
        if self.summary:
            return f"{self.path}: {self.summary}\n"

        lines = difflib.unified_diff(
            (self.before or "").splitlines(keepends=True),
            (self.after or "").splitlines(keepends=True),
            str(self.path) if self.before is not None else os.devnull,
            str(self.path) if self.after is not None else os.devnull,
        )
        # difflib leaves a last line without its line end, so that two lines would run together.
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def make_edits(edits: Iterable[Edit]) -> None:
    """Write all edits that change a file; on a failure or an interrupt, undo the edits before it.

    Raises:
        RequestError: A file cannot be written, or has changed since the edit was planned.
    """
    begun: list[Edit] = []
    try:
        for edit in edits:
            if edit.changes:
                # Before the write: an interrupt in the middle of it is undone, too.
                begun.append(edit)
                _require_unchanged(edit)
                _write(edit.path, edit.after, edit.mode)
    except BaseException as error:
        left = [str(each.path) for each in reversed(begun) if not _undo(each)]
        # An interrupt passes on as it is, unless a file is still changed: then the user must know its name.
        if not left and not isinstance(error, (OSError, RequestError)):
            raise

        step = "Run it as root, or as its owner in its group" if isinstance(error, OSError) else "Run it again"
        outcome = f"these stay changed: {', '.join(left)}" if left else "nothing was changed"
        message = (
            f"File {str(begun[-1].path)!r} must be writable, by nobody else meanwhile; got: {error}. {step}; {outcome}."
        )
        raise RequestError(message) from error


def edit_of(path: Path, after: str | None, *, mode: int = 0o644) -> Edit:
    """Return the edit of the file at *path* to the text *after*; the two may be equal."""
    return Edit(path=path, before=read_text(path), after=after, mode=mode)


def read_text(path: Path) -> str | None:
    """Return the text of a file with its line ends as they are, ``None`` where there is no file.

    Raises:
        RequestError: It cannot be read, or is not UTF-8.
    """
    try:
        # newline="" keeps an admin's CRLF, so that an edit changes no other line.
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        message = f"File {str(path)!r} must be readable text; got: {error}. Run it as the owner, or fix the file."
        raise RequestError(message) from error


def _require_unchanged(edit: Edit) -> None:
    if read_text(edit.path) != edit.before:
        message = "a text that somebody has changed since the edit was planned"
        raise RequestError(message)


def _undo(edit: Edit) -> bool:
    """Restore the file unless somebody else has written to it since; return whether our change is gone."""
    try:
        text = read_text(edit.path)
        if text == edit.after:
            _write(edit.path, edit.before, edit.mode)
            text = edit.before
    except BaseException:  # an interrupt, too: the other edits are undone first, and the error names this file
        return False
    return text == edit.before or text != edit.after


def _write(path: Path, text: str | None, mode: int) -> None:
    """Replace the text of *path* at once, with owner and mode kept; a power cut leaves the old or the new text."""
    if text is None:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
        return

    # Jobs' users run files there.
    make_open_folder(path.parent)
    # Through a link: an admin may keep a configuration in another folder.
    target = path.resolve()
    atomic_write(target, text, mode=None if target.exists() else mode, is_admins=True)
