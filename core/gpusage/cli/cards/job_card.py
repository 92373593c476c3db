"""``gpusage job-card``, which the login node runs for each sbatch: prints the card of the model in a job's comment.

It runs as the user, in sbatch's directory. Without a card the reason takes its place, and the daemon's answer shows it
to the user; a malformed comment is left to the daemon, which parses it too. Cards are cached below the user's cache
folder, and a site may cache some for all users, so that the second submission of a model does not read the model.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import click

from gpusage.cli.cards.cache import read_card, user_cache, write_atomically, write_for_all_users
from gpusage.cli.cards.card_reader import card_or_error, read_within
from gpusage_hooks.comment import parse_comment, parse_model
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import ModelRequest

SITE_FOLDER = Path("/etc/gpusage/cards")
"""A site's cards for all of its users, from ``gpusage job-card --keep-in``."""

_FOR_ALL = 0o005
_FORMAT = "1"  # of the cache's entries; a new card format takes a new one


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
        comment = _comment_of(record)
        click.echo(comment)
    if not comment:
        return
    if keep_in is not None:
        click.echo(_write_site_card(comment, keep_in))
        return
    try:
        request = parse_comment(comment) or _of_plugin(comment)
    except RequestError:
        return
    if request is not None and request.enabled:
        click.echo(card_or_error(lambda: _card_within(request, limit_s)))


def _of_plugin(comment: str) -> ModelRequest | None:
    """Return the request of a *comment* that begins with a model which only a plugin reads."""
    from gpusage.decisions.advisor import advisor  # takes longer than to find a card; few comments come here

    return parse_comment(comment, advisor().model_names)


def _comment_of(record: Path) -> str:
    from gpusage.cli.cards.first_run import comment_of_run  # a comment of the user's own needs neither
    from gpusage.decisions.advisor import advisor

    return comment_of_run(record, advisor().catalogue) or ""


def _write_site_card(comment: str, folder: Path) -> str:
    """Return a new card of the model that *comment* names, after writing it to the site's *folder*.

    Raises:
        GpuUsageError: There is no card, or it cannot be written there for all users.
    """
    request = parse_model(comment)
    card = _read_model(request)
    try:
        write_for_all_users(folder / cache_key(request), f"{card}\n".encode("ascii"))
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
    cache = cache_folder()
    path = cache / cache_key(request)
    card = _find_card(path)
    if card or limit_s is None:
        return card or card_of(request, cache)
    return read_within(limit_s, path, lambda: card_of(request, cache), spent_s=_process_age_s())


def _find_card(path: Path) -> str | None:
    """Return the user's cached card at *path*, else the site's, ``None`` if there is neither."""
    return read_card(path) or read_card(SITE_FOLDER / path.name)


def _process_age_s() -> float:
    """Return the age of this process: sbatch waits for Python's start, too."""
    after_the_name = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    started_s = int(after_the_name[19]) / os.sysconf("SC_CLK_TCK")  # starttime, field 22 of proc(5), since boot
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


def card_of(request: ModelRequest, cache: Path | None = None) -> str:
    """Return the card of the model that *request* names, from the cache if the model has not changed.

    Raises:
        GpuUsageError: The model is malformed.
        OSError: The model cannot be accessed.
    """
    path = (cache or cache_folder()) / cache_key(request)
    return _find_card(path) or _store(path, _read_model(request))


def cache_folder() -> Path:
    """Return the folder of the user's cached cards."""
    return user_cache() / "cards"


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


def _read_model(request: ModelRequest) -> str:
    from gpusage.decisions.advisor import make_advisor  # a cached card needs no reader
    from gpusage.graphs.card.text import encode

    model = str(Path(request.model).expanduser()) if request.model.startswith("~") else request.model
    return encode(make_advisor().read(model, dict(request.workload.shape)))


def _store(path: Path, card: str) -> str:
    write_atomically(path, f"{card}\n".encode("ascii"))
    return card
