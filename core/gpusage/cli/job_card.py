"""What the login node calls for each sbatch: a job's comment -> the card of its model, on standard output.

It runs as the user, in the directory that sbatch was called in. Where the model cannot be read, the reason travels in
the card's place and the daemon's answer tells the user; whatever else goes wrong, nothing is printed, for a job must go
through without a card. Cards are kept below the user's cache folder, so that the second submission of a model reads no
model.
"""

from __future__ import annotations

import hashlib
import re
import signal
import sys
from pathlib import Path

import click

from gpusage.cli.keeping import keep, user_cache
from gpusage.comment import parse_comment
from gpusage.graphs.trouble import encode_trouble
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelRequest

MAXIMUM_CARD_CHARACTERS = 16 * 1024

_CARD = re.compile(rf"[A-Za-z0-9+/=]{{1,{MAXIMUM_CARD_CHARACTERS}}}")
_FORMAT = "1"  # of the cache's entries; a new card format takes a new one


@click.command(name="job-card", hidden=True)
@click.argument("comment")
@click.option("--limit-s", default=8.0, show_default=True, help="Give up after so many seconds.")
def job_card(comment: str, limit_s: float) -> None:
    """Print the card of the model that a job's COMMENT names, or why there is none, or nothing.

    Example: gpusage job-card 'model=resnet50.onnx,batch=64'
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, also inside a C library
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        card = card_of_comment(comment)
    except GraphError as error:
        card = encode_trouble(str(error))
    except Exception:  # noqa: BLE001 - whatever it was, sbatch goes on without a card
        sys.exit(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if card:
        click.echo(card)


def card_of_comment(comment: str, cache: Path | None = None) -> str | None:
    """Return the card of the model that *comment* names, ``None`` where it names none or opts out.

    Raises:
        GpuUsageError: The comment or the model is malformed.
        OSError: The model cannot be looked at.
    """
    wish = parse_comment(comment)
    return None if wish is None or not wish.enabled else card_of(wish, cache)


def card_of(wish: ModelRequest, cache: Path | None = None) -> str:
    """Return the card of the model that *wish* names, kept from an earlier call where the model is still the same.

    Raises:
        GpuUsageError: The model is malformed.
        OSError: The model cannot be looked at.
    """
    kept = (cache or cache_folder()) / cache_key(wish)
    return _read_kept(kept) or _keep(kept, _read_model(wish))


def cache_folder() -> Path:
    """Return where the user's cards are kept."""
    return user_cache() / "cards"


def cache_key(wish: ModelRequest) -> str:
    """Return a name that changes with the model's path, length and time of change, and with the shape asked for.

    A folder counts by its config.json; a name that is no path counts by itself.
    """
    path = Path(wish.model).expanduser()
    seen = path / "config.json" if path.is_dir() else path
    try:
        status = seen.stat()
        identity: tuple[object, ...] = (str(path.absolute()), status.st_size, status.st_mtime_ns, status.st_ino)
    except OSError:
        identity = (wish.model,)
    return hashlib.sha256(repr((_FORMAT, identity, wish.workload.shape)).encode("utf-8", "replace")).hexdigest()


def _read_model(wish: ModelRequest) -> str:
    """Return a new card; imports what reads models only here, for most calls need none of it."""
    from gpusage.advisor import make_advisor  # noqa: PLC0415 - see above
    from gpusage.graphs.card import encode  # noqa: PLC0415 - see above

    model = str(Path(wish.model).expanduser()) if wish.model.startswith("~") else wish.model
    return encode(make_advisor().read(model, dict(wish.workload.shape)))


def _read_kept(path: Path) -> str | None:
    try:
        with path.open(encoding="ascii") as file:
            text = file.read(MAXIMUM_CARD_CHARACTERS + 2).strip()
    except (OSError, ValueError):
        return None
    return text if _CARD.fullmatch(text) else None


def _keep(path: Path, card: str) -> str:
    keep(path, f"{card}\n".encode("ascii"))
    return card
