"""``gpusage job-card``, which the login node runs for each sbatch: prints the card of the model in a job's comment.

It runs as the user, in sbatch's directory. Without a card the reason takes its place, and the daemon's answer shows it
to the user; a malformed comment is left to the daemon, which parses it too. Cards are cached below the user's cache
folder, and a site may cache some for all users, so that the second submission of a model does not read the model.

A card is read in a child process, which continues in the background after the limit. While it reads, and after it
failed too late, the card's path in the cache has a note beside it, and the child holds the lock of the note.

Invariants:

1. sbatch has a card, or the reason why there is none yet, by the limit.
2. No model is read twice at once, and one that failed late is not read again for `REMEMBERED_S`.
3. A user has at most one child in the background; its priority is low, and it ends within `BACKGROUND_S`. If nothing
   can be cached there is none.
4. Only notes that no other user can write are read and written.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from gpusage.cli.cards.cache import (
    make_own_folder,
    open_own,
    read_card,
    user_cache,
    write_atomically,
    write_for_all_users,
)
from gpusage.graphs.card.error import ERROR_MARK, encode_error
from gpusage_hooks.comment import parse_comment, parse_model
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_hooks.types import ModelRequest

SITE_FOLDER = Path("/etc/gpusage/cards")
"""A site's cards for all of its users, from ``gpusage job-card --keep-in``."""
BACKGROUND_S = 120
REMEMBERED_S = 600.0

_FORMAT = "1"  # of the cache's entries; a new card format takes a new one
_FOR_ALL = 0o005  # read and search, of others
_NOTE_BYTES = 16 * 1024
_POLL_S = 0.02
_LOWEST_PRIORITY = 19
_SLOW = "describing the model takes longer than {:g} s, this site's limit"
_GOES_ON = f"{_SLOW}; it continues in the background, so submit again in a moment"
_NOWHERE = f"{_SLOW}, and it cannot be cached: {{}} must be a folder that you own and may write"
_WAITS = f"{_SLOW}, and another model is being read in the background; submit again later"
_ENDED = f"the model could not be described: the process was ended after {BACKGROUND_S} s or from outside"


@click.command(name="job-card", hidden=True)
@click.argument("comment", required=False)
@click.option(
    "--first-run", "record", type=click.Path(path_type=Path), help="Also print the comment that this record gives."
)
@click.option("--limit-s", type=float, help="Stop after this time and say why.  [default: wait for the card]")
@click.option(
    "--keep-in", type=click.Path(path_type=Path), help="Keep the card here, for all users.  [default: the user's cache]"
)
def job_card(comment: str | None, record: Path | None, limit_s: float | None, keep_in: Path | None) -> None:
    """Print the card of the model that a job's COMMENT names.

    If there is no card, print "!" and the reason. If COMMENT names no model, print nothing. The comment of a job that
    names none may come from the record of its script's own run.

    Example: gpusage job-card 'model=resnet50.onnx,batch=64'
    """
    if record is not None:
        from gpusage.cli.cards.first_run import comment_of_run  # a comment of the user's own needs neither
        from gpusage.decisions.advisor import advisor

        comment = comment_of_run(record, advisor().catalogue) or ""
        click.echo(comment)
    if not comment:
        return
    if keep_in is not None:
        click.echo(_write_site_card(comment, keep_in))
        return

    try:
        request = parse_comment(comment)
        if request is None:
            from gpusage.decisions.advisor import advisor  # takes longer than to find a card; few comments come here

            # Only the plugins know whether it begins with a model that a plugin reads.
            request = parse_comment(comment, advisor().model_names)
    except RequestError:
        return
    if request is not None and request.enabled:
        click.echo(_card_or_error(lambda: _card_within(request, limit_s)))


def _write_site_card(comment: str, folder: Path) -> str:
    """Return a new card of the model that *comment* names, after writing it to the site's *folder*.

    Raises:
        GpuUsageError: There is no card, or it cannot be written there for all users.
    """
    request = parse_model(comment)
    card = _read_model(request)
    try:
        write_for_all_users(folder / cache_key(request), f"{card}\n")
        open_to_all = folder.stat().st_mode & _FOR_ALL == _FOR_ALL
    except OSError as error:
        message = f"Folder '{folder}' must be one that cards can be written to; got: {error}. Run this as root."
        raise RequestError(message) from error
    if not open_to_all:
        message = f"Folder '{folder}' must be readable by all users; it is not. Run: chmod 755 '{folder}'"
        raise RequestError(message)
    return card


def _card_within(request: ModelRequest, limit_s: float | None) -> str:
    """Return the card, or the reason why there is none yet, within *limit_s* of this process's start.

    Raises:
        GpuUsageError: The model is malformed.
        OSError: The model cannot be accessed.
    """
    cache = user_cache() / "cards"
    path = cache / cache_key(request)
    card = _find_card(path)
    if card or limit_s is None:
        return card or card_of(request, cache)

    # sbatch waits for Python's start, too: starttime, field 22 of proc(5), is counted in ticks since boot.
    after_the_name = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    started_s = int(after_the_name[19]) / os.sysconf("SC_CLK_TCK")
    age_s = max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
    return _read_within(limit_s, path, lambda: card_of(request, cache), spent_s=age_s)


def card_of(request: ModelRequest, cache: Path | None = None) -> str:
    """Return the card of the model that *request* names, from the cache if the model has not changed.

    Raises:
        GpuUsageError: The model is malformed.
        OSError: The model cannot be accessed.
    """
    path = (cache or user_cache() / "cards") / cache_key(request)
    card = _find_card(path)
    if card is None:
        card = _read_model(request)
        write_atomically(path, f"{card}\n")
    return card


def cache_key(request: ModelRequest) -> str:
    """Return a file name that depends on the model's path, inode, length and time of change, and on the shape.

    Of a folder its config.json counts; a name that is no path counts itself.
    """
    path = Path(request.model).expanduser()
    file = path / "config.json" if os.path.isdir(path) else path  # noqa: PTH112 - is_dir() raises in a folder that it may not search
    try:
        status = file.stat()
        identity: tuple[object, ...] = (str(path.absolute()), status.st_size, status.st_mtime_ns, status.st_ino)
    except OSError:
        identity = (request.model,)
    return hashlib.sha256(repr((_FORMAT, identity, request.workload.shape)).encode("utf-8", "replace")).hexdigest()


def _find_card(path: Path) -> str | None:
    """Return the user's cached card at *path*, else the site's, ``None`` if there is neither."""
    return read_card(path) or read_card(SITE_FOLDER / path.name)


def _read_model(request: ModelRequest) -> str:
    """Return a new card of the model that *request* names."""
    from gpusage.decisions.advisor import make_advisor  # a cached card needs no reader
    from gpusage.graphs.card.text import encode

    model = str(Path(request.model).expanduser()) if request.model.startswith("~") else request.model
    return encode(make_advisor().read(model, dict(request.workload.shape)))


def _card_or_error(read: Callable[[], str]) -> str:
    """Return the card from *read*, or in its place the reason why it fails, which sbatch shows to its user."""
    try:
        return read()
    except GpuUsageError as error:
        return encode_error(str(error))
    except Exception as error:  # the job is submitted, whatever fails here
        return encode_error(f"describing the model failed: {type(error).__name__}: {error}")


def _read_within(limit_s: float, place: Path, read: Callable[[], str], *, spent_s: float) -> str:
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

    # Another process is reading this model: wait for its card as long as that process's parent waits.
    if not _try_lock(note_file):
        until_s = min(until_s, time.monotonic() + os.fstat(note_file).st_mtime + limit_s - time.time())
        while not (card := read_card(place)) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        return card or encode_error(_GOES_ON.format(limit_s))

    # An earlier process left the reason why the model cannot be read; a clock that was set back makes it too old.
    age_s = time.time() - os.fstat(note_file).st_mtime
    note = os.pread(note_file, _NOTE_BYTES, 0).decode("ascii", "replace")
    if note.startswith(ERROR_MARK) and 0 <= age_s < REMEMBERED_S:
        return note

    _write_note(note_file, encode_error(_ENDED))  # what holds if the child is killed
    background = _open_note(place.with_name("background.lock"))
    child, pipe = _fork_reader(read, note_file, note_path, keep_open=background)
    os.close(note_file)  # the lock stays with the child
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([pipe], [], [], left_s)[0]:
            return os.read(pipe, 2**16).decode("ascii") or encode_error(_ENDED)

    # A file without a name is in memory alone: then nothing can be cached, and to go on would serve nobody.
    can_cache = os.fstat(background).st_nlink > 0
    if can_cache and _try_lock(background):
        os.setpriority(os.PRIO_PROCESS, child, _LOWEST_PRIORITY)
        return encode_error(_GOES_ON.format(limit_s))
    os.kill(child, signal.SIGKILL)
    _remove_note(note_path)
    return encode_error((_WAITS if can_cache else _NOWHERE).format(limit_s, place.parent))


def _fork_reader(read: Callable[[], str], note_file: int, note_path: Path, *, keep_open: int) -> tuple[int, int]:
    """Start a child that reads the card; return its process id, and the pipe for its text."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child:
        os.close(theirs)
        return child, ours

    try:
        os.close(ours)
        # sbatch waits for everyone who holds its files, and a terminal's signals go to the whole session.
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, also inside a C library
        signal.alarm(BACKGROUND_S)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        open_files = sorted({2, note_file, theirs, keep_open})
        for lower, upper in zip(open_files, [*open_files[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(lower + 1, upper)

        text = _card_or_error(read)
        _write_note(note_file, text)
        has_reader = True
        try:
            os.write(theirs, text.encode("ascii"))
        except BrokenPipeError:
            has_reader = False
        if has_reader or not text.startswith(ERROR_MARK):
            _remove_note(note_path)  # the parent or the cache has it: nothing to remember
    finally:
        os._exit(0)


def _open_note(path: Path) -> int:
    try:
        make_own_folder(path.parent)
        return open_own(path, os.O_RDWR | os.O_CREAT, {os.geteuid()})
    except OSError:
        return os.memfd_create(path.name)  # without a cache nothing is remembered


def _write_note(note_file: int, text: str) -> None:
    os.ftruncate(note_file, 0)
    os.pwrite(note_file, text.encode("ascii"), 0)


def _remove_note(note_path: Path) -> None:
    with suppress(OSError):
        note_path.unlink()


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
