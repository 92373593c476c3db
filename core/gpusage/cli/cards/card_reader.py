"""A card within a limit: the model is read in a child process, which goes on alone where its parent has no time left.

Beside the card's place in the user's cache lies a note while it is being made, and where it could not be made in time.
Whoever makes the card holds the note's lock.

Invariants:

1. The parent has a card, or the reason why there is none yet, by the limit.
2. No model is read twice at once, and one that failed late is left alone for `REMEMBERED_S`.
3. A user has at most one child without a parent; its priority is low, and it ends within `BACKGROUND_S`. Where
   nothing can be kept there is none.
4. Only notes that are this user's alone are read and written.
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

from gpusage.cli.cards.cache import kept_card, open_own, own_folder
from gpusage.graphs.card.trouble import SIGN, encode_trouble
from gpusage_hooks.errors import GpuUsageError

BACKGROUND_S = 120
REMEMBERED_S = 600.0

_NOTE_BYTES = 16 * 1024
_POLL_S = 0.02
_LOWEST_PRIORITY = 19
_SLOW = "describing the model takes longer than {:g} s, this site's limit"
_GOES_ON = f"{_SLOW}; it goes on in the background, so submit again in a moment"
_NOWHERE = f"{_SLOW}, and it cannot be kept for the next time: {{}} must be a folder that you own and may write"
_WAITS = f"{_SLOW}, and another model is being read in the background; submit again later"
_ENDED = f"the model could not be described, because that was ended after {BACKGROUND_S} s or from outside"


def card_or_trouble(read: Callable[[], str]) -> str:
    """Return the card that *read* gives, or in its place why it fails: sbatch goes on, and its user hears why."""
    try:
        return read()
    except GpuUsageError as error:
        return encode_trouble(str(error))
    except Exception as error:  # noqa: BLE001 - whatever it was, the job is submitted
        return encode_trouble(f"describing the model failed: {type(error).__name__}: {error}")


def read_within(limit_s: float, place: Path, read: Callable[[], str], *, spent_s: float = 0.0) -> str:
    """Return the card that *read* gives, or what stands in its place, by the limit.

    Args:
        limit_s: As the user reads it.
        place: Where *read* keeps the card for the next time.
        read: Called in a child process.
        spent_s: How much of the limit is over.
    """
    until_s = time.monotonic() + limit_s - spent_s
    note_path = place.with_name(f"{place.name}.note")
    note = _open(note_path)
    if not _locked(note):
        return _awaited(limit_s, note, place, until_s)
    remembered = _remembered(note)
    if remembered:
        return remembered
    _write(note, encode_trouble(_ENDED))
    background = _open(place.with_name("background.lock"))
    child, pipe = _forked(lambda: card_or_trouble(read), note, note_path, keep_open=background)
    os.close(note)  # the lock stays with the child
    answer = _received(pipe, until_s)
    if answer is not None:
        return answer or encode_trouble(_ENDED)
    lasts = _lasts(background)
    if lasts and _locked(background):
        os.setpriority(os.PRIO_PROCESS, child, _LOWEST_PRIORITY)
        return encode_trouble(_GOES_ON.format(limit_s))
    os.kill(child, signal.SIGKILL)
    _forget(note_path)
    return encode_trouble((_WAITS if lasts else _NOWHERE).format(limit_s, place.parent))


def _awaited(limit_s: float, note: int, place: Path, until_s: float) -> str:
    """Wait for the card that another process is making, for as long as that one's own parent does."""
    until_s = min(until_s, time.monotonic() + os.fstat(note).st_mtime + limit_s - time.time())
    while not (card := kept_card(place)) and time.monotonic() < until_s:
        time.sleep(_POLL_S)
    return card or encode_trouble(_GOES_ON.format(limit_s))


def _open(path: Path) -> int:
    try:
        own_folder(path.parent)
        return open_own(path, os.O_RDWR | os.O_CREAT, {os.geteuid()})
    except OSError:
        return os.memfd_create(path.name)  # a cache that cannot be written remembers nothing


def _lasts(file: int) -> bool:
    """Tell whether others can open it, too: what lies in memory alone has no name."""
    return os.fstat(file).st_nlink > 0


def _forget(note_path: Path) -> None:
    with suppress(OSError):
        note_path.unlink()


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remembered(note: int) -> str:
    """Return what an earlier reading left there, where it is young enough."""
    age_s = time.time() - os.fstat(note).st_mtime
    text = os.pread(note, _NOTE_BYTES, 0).decode("ascii", "replace")
    return text if text.startswith(SIGN) and 0 <= age_s < REMEMBERED_S else ""


def _write(note: int, text: str) -> None:
    os.ftruncate(note, 0)
    os.pwrite(note, text.encode("ascii"), 0)


def _forked(outcome: Callable[[], str], note: int, note_path: Path, *, keep_open: int) -> tuple[int, int]:
    """Start a child that makes the card; return its number, and the pipe that its outcome comes by."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child:
        os.close(theirs)
        return child, ours
    try:
        os.close(ours)
        _alone({note, theirs, keep_open})
        text = outcome()
        _write(note, text)
        if _sent(theirs, text) or not text.startswith(SIGN):
            _forget(note_path)  # somebody has it, or the cache: nothing to remember
    finally:
        os._exit(0)


def _sent(pipe: int, text: str) -> bool:
    """Send *text*, and tell whether somebody was there to hear it."""
    try:
        os.write(pipe, text.encode("ascii"))
    except BrokenPipeError:
        return False
    return True


def _alone(files: set[int]) -> None:
    """Let go of everything that a waiting sbatch may hang on, and end in time."""
    os.setsid()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, also inside a C library
    signal.alarm(BACKGROUND_S)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    kept_files = sorted({2, *files})
    for lower, upper in zip(kept_files, [*kept_files[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(lower + 1, upper)


def _received(pipe: int, until_s: float) -> str | None:
    """Return what comes by *pipe*, ``""`` where it ends without a word, ``None`` where there is no time left."""
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([pipe], [], [], left_s)[0]:
            return os.read(pipe, 2**16).decode("ascii")
    return None
