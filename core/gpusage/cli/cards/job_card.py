"""What the login node calls for each sbatch: a job's comment -> the card of its model, on standard output.

It runs as the user, in the directory that sbatch was called in. Where there is no card, the reason travels in its place
and the daemon's answer tells the user; a malformed comment is left to the daemon, which reads it as well. Cards are
kept below the user's cache folder, and a site may keep some for all of its users, so that the second submission of a
model reads no model.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import click

from gpusage.cli.cards.cache import keep, keep_for_all, kept_card, user_cache
from gpusage.cli.cards.card_reader import card_or_trouble, read_within
from gpusage_hooks.comment import parse_comment, parse_model
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import ModelRequest

SITE_FOLDER = Path("/etc/gpusage/cards")
"""Cards that a site keeps for all of its users, written by ``gpusage job-card --keep-in``."""

_FOR_ALL = 0o005
_FORMAT = "1"  # of the cache's entries; a new card format takes a new one


@click.command(name="job-card", hidden=True)
@click.argument("comment")
@click.option("--limit-s", type=float, help="Stop after this time and say why.  [default: wait for the card]")
@click.option(
    "--keep-in", type=click.Path(path_type=Path), help="Keep the card here, for all users.  [default: the user's cache]"
)
def job_card(comment: str, limit_s: float | None, keep_in: Path | None) -> None:
    """Print the card of the model that a job's COMMENT names.

    If there is no card, print "!" and the reason. If COMMENT names no model, print nothing.

    Example: gpusage job-card 'model=resnet50.onnx,batch=64'
    """
    if keep_in is not None:
        click.echo(_kept_for_all(comment, keep_in))
        return
    try:
        wish = parse_comment(comment)
    except RequestError:
        return
    if wish is not None and wish.enabled:
        click.echo(card_or_trouble(lambda: _in_time(wish, limit_s)))


def _kept_for_all(comment: str, folder: Path) -> str:
    """Return a new card of the model that *comment* names, kept in the site's *folder*.

    Raises:
        GpuUsageError: There is none, or it cannot be kept there for all users.
    """
    wish = parse_model(comment)
    card = _read_model(wish)
    try:
        keep_for_all(folder / cache_key(wish), f"{card}\n".encode("ascii"))
        open_to_all = folder.stat().st_mode & _FOR_ALL == _FOR_ALL
    except OSError as error:
        message = f"Folder '{folder}' must be one that cards can be written to; got: {error}. Run this as root."
        raise RequestError(message) from error
    if not open_to_all:
        message = f"Folder '{folder}' must be readable by all users; it is not. Run: chmod 755 '{folder}'"
        raise RequestError(message)
    return card


def _in_time(wish: ModelRequest, limit_s: float | None) -> str:
    """Return the card within *limit_s* of this process's start.

    Raises:
        GpuUsageError: The model is malformed.
        OSError: The model cannot be looked at.
    """
    cache = cache_folder()
    place = cache / cache_key(wish)
    card = _kept_card(place)
    if card or limit_s is None:
        return card or card_of(wish, cache)
    return read_within(limit_s, place, lambda: card_of(wish, cache), spent_s=_age_s())


def _kept_card(place: Path) -> str | None:
    """Return the card that the user keeps at *place*, else the site's for all users."""
    return kept_card(place) or kept_card(SITE_FOLDER / place.name)


def _age_s() -> float:
    """Return how long ago this process was started: sbatch waits for Python's own start too."""
    after_the_name = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    started_s = int(after_the_name[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5), since the host's start
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


def card_of(wish: ModelRequest, cache: Path | None = None) -> str:
    """Return the card of the model that *wish* names, kept from an earlier call where the model is still the same.

    Raises:
        GpuUsageError: The model is malformed.
        OSError: The model cannot be looked at.
    """
    place = (cache or cache_folder()) / cache_key(wish)
    return _kept_card(place) or _keep(place, _read_model(wish))


def cache_folder() -> Path:
    """Return where the user's cards are kept."""
    return user_cache() / "cards"


def cache_key(wish: ModelRequest) -> str:
    """Return a name that changes with the model's path, length and time of change, and with the shape asked for.

    A folder counts by its config.json; a name that is no path counts by itself.
    """
    path = Path(wish.model).expanduser()
    described = path / "config.json" if os.path.isdir(path) else path  # noqa: PTH112 - is_dir() raises where it may not look
    try:
        status = described.stat()
        identity: tuple[object, ...] = (str(path.absolute()), status.st_size, status.st_mtime_ns, status.st_ino)
    except OSError:
        identity = (wish.model,)
    return hashlib.sha256(repr((_FORMAT, identity, wish.workload.shape)).encode("utf-8", "replace")).hexdigest()


def _read_model(wish: ModelRequest) -> str:
    from gpusage.cli.cards.new_card import new_card  # noqa: PLC0415 - most calls find a card, and read no model

    return new_card(wish)


def _keep(path: Path, card: str) -> str:
    keep(path, f"{card}\n".encode("ascii"))
    return card
