"""Reads a card within a time limit: in a child process, which continues in the background after the limit.

While a child reads a model, and after it failed too late, the card's path in the user's cache has a note beside it. The
child holds the lock of the note.

Invariants:

1. The parent has a card, or the reason why there is none yet, by the limit.
2. No model is read twice at once, and one that failed late is not read again for `REMEMBERED_S`.
3. A user has at most one child in the background; its priority is low, and it ends within `BACKGROUND_S`. If nothing
   can be cached there is none.
4. Only notes that no other user can write are read and written.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpusage.cli.cards.cache import make_own_folder, open_own, read_card
from gpusage.graphs.card.error import ERROR_MARK, encode_error
from gpusage_hooks.errors import GpuUsageError

BACKGROUND_S = 120
REMEMBERED_S = 600.0

_NOTE_BYTES = 16 * 1024
_POLL_S = 0.02
_LOWEST_PRIORITY = 19
_SLOW = "describing the model takes longer than {:g} s, this site's limit"
_GOES_ON = f"{_SLOW}; it continues in the background, so submit again in a moment"
_NOWHERE = f"{_SLOW}, and it cannot be cached: {{}} must be a folder that you own and may write"
_WAITS = f"{_SLOW}, and another model is being read in the background; submit again later"
_ENDED = f"the model could not be described: the process was ended after {BACKGROUND_S} s or from outside"


def card_or_error(read: Callable[[], str]) -> str:
    """Return the card from *read*, or in its place the reason why it fails, which sbatch shows to its user."""
    try:
        return read()
    except GpuUsageError as error:
        return encode_error(str(error))
    except Exception as error:  # the job is submitted, whatever fails here
        return encode_error(f"describing the model failed: {type(error).__name__}: {error}")


def read_within(limit_s: float, place: Path, read: Callable[[], str], *, spent_s: float = 0.0) -> str:
    """Return the card from *read*, or the reason why there is none, within the limit.

    Args:
        limit_s: The limit, as messages show it.
        place: The path at which *read* caches the card.
        read: Called in a child process.
        spent_s: The part of the limit that has passed.
    """
    until_s = time.monotonic() + limit_s - spent_s
    note_path = place.with_name(f"{place.name}.note")
    note_file = _open_note(note_path)
    if not _try_lock(note_file):
        return _wait_for_card(limit_s, note_file, place, until_s)
    remembered = _remembered_error(note_file)
    if remembered:
        return remembered
    _write_note(note_file, encode_error(_ENDED))
    background = _open_note(place.with_name("background.lock"))
    child, pipe = _fork_reader(lambda: card_or_error(read), note_file, note_path, keep_open=background)
    os.close(note_file)  # the lock stays with the child
    text = _receive(pipe, until_s)
    if text is not None:
        return text or encode_error(_ENDED)
    can_cache = _has_name(background)
    if can_cache and _try_lock(background):
        os.setpriority(os.PRIO_PROCESS, child, _LOWEST_PRIORITY)
        return encode_error(_GOES_ON.format(limit_s))
    os.kill(child, signal.SIGKILL)
    _remove_note(note_path)
    return encode_error((_WAITS if can_cache else _NOWHERE).format(limit_s, place.parent))


def _wait_for_card(limit_s: float, note_file: int, place: Path, until_s: float) -> str:
    """Wait for the card that another process is reading, as long as the parent of that process waits."""
    until_s = min(until_s, time.monotonic() + os.fstat(note_file).st_mtime + limit_s - time.time())
    while not (card := read_card(place)) and time.monotonic() < until_s:
        time.sleep(_POLL_S)
    return card or encode_error(_GOES_ON.format(limit_s))


def _open_note(path: Path) -> int:
    try:
        make_own_folder(path.parent)
        return open_own(path, os.O_RDWR | os.O_CREAT, {os.geteuid()})
    except OSError:
        return os.memfd_create(path.name)  # without a cache nothing is remembered


def _has_name(file: int) -> bool:
    """Return whether *file* is in a folder, not in memory alone."""
    return os.fstat(file).st_nlink > 0


def _remove_note(note_path: Path) -> None:
    with suppress(OSError):
        note_path.unlink()


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remembered_error(note_file: int) -> str:
    """Return the error in the note of an earlier process, ``""`` if it is too old."""
    age_s = time.time() - os.fstat(note_file).st_mtime
    text = os.pread(note_file, _NOTE_BYTES, 0).decode("ascii", "replace")
    return text if text.startswith(ERROR_MARK) and 0 <= age_s < REMEMBERED_S else ""


def _write_note(note_file: int, text: str) -> None:
    os.ftruncate(note_file, 0)
    os.pwrite(note_file, text.encode("ascii"), 0)


def _fork_reader(outcome: Callable[[], str], note_file: int, note_path: Path, *, keep_open: int) -> tuple[int, int]:
    """Start a child that reads the card; return its process id, and the pipe for its text."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child:
        os.close(theirs)
        return child, ours
    try:
        os.close(ours)
        _detach({note_file, theirs, keep_open})
        text = outcome()
        _write_note(note_file, text)
        if _send(theirs, text) or not text.startswith(ERROR_MARK):
            _remove_note(note_path)  # the parent or the cache has it: nothing to remember
    finally:
        os._exit(0)


def _send(pipe: int, text: str) -> bool:
    """Return whether somebody received *text*."""
    try:
        os.write(pipe, text.encode("ascii"))
    except BrokenPipeError:
        return False
    return True


def _detach(files: set[int]) -> None:
    """Close everything that sbatch may wait for, leave its session, and end within `BACKGROUND_S`."""
    os.setsid()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, also inside a C library
    signal.alarm(BACKGROUND_S)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    open_files = sorted({2, *files})
    for lower, upper in zip(open_files, [*open_files[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(lower + 1, upper)


def _receive(pipe: int, until_s: float) -> str | None:
    """Return the text from *pipe*, ``""`` if the child ended without one, ``None`` after the limit."""
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([pipe], [], [], left_s)[0]:
            return os.read(pipe, 2**16).decode("ascii")
    return None
