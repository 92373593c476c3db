"""The machine that a sandbox runs on: its cache of downloads, a folder of one's own, free ports, and a progress bar."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from gpusage_hooks.errors import RequestError

Report = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much: ``report("download", 3_000, 14_000)``."""


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Report]:
    """Show on standard error what is done, as a bar a stage, where that is a terminal."""
    console = Console(stderr=True, quiet=quiet)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done, total=total)

        yield report


def cache_folder() -> Path:
    """Return where downloads are kept: $GPUSAGE_CACHE, else gpusage in $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("GPUSAGE_CACHE")
    if own:
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpusage"


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Let one process at a time build *folder*; the kernel lets go of the lock when its holder dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_once(folder: Path, is_complete: Callable[[], bool], build: Callable[[Path], None]) -> None:
    """Let *build* fill a folder beside *folder*, which is then renamed, unless that is complete already."""
    if is_complete():
        return
    with lock(folder):
        if not is_complete():  # another process may have built it while this one waited
            partial = folder.with_name(f".{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            build(partial)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)


_PORTS = range(10_000, 32_000)  # below those that the kernel gives to outgoing connections
_MOST_TRIES = 1000


def private_folder(folder: Path | None, longest: int) -> Path:
    """Return *folder*, empty, made if need be, that nobody else can look into; a temporary one where ``None``.

    Raises:
        RequestError: It is not empty, not ours, or its path has more than *longest* bytes or a letter that
            configuration files cannot hold.
    """
    absolute = Path(tempfile.mkdtemp(prefix="gpusage-sandbox-")) if folder is None else folder.absolute()
    length = len(os.fsencode(absolute))
    if length > longest:
        message = (
            f"Folder of this sandbox must have a path of at most {longest} bytes, for the sockets in it; "
            f"{str(absolute)!r} has {length}. Name a shorter one with --folder."
        )
        raise RequestError(message)
    if not re.fullmatch(r"[\w/.+@:~-]+", str(absolute)):
        message = f"Folder of a sandbox must be a plain word; got {str(absolute)!r}. Name another one with --folder."
        raise RequestError(message)

    try:
        absolute.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_own(absolute)
        absolute.chmod(0o700)
        occupied = any(absolute.iterdir())
    except OSError as error:
        message = f"Folder {str(absolute)!r} must be writable; got: {error}. Name another one with --folder."
        raise RequestError(message) from error

    if occupied:
        message = (
            f"Folder {str(absolute)!r} must be empty; it is not. Take the sandbox in it down, or name another one."
        )
        raise RequestError(message)

    return absolute


def require_own(folder: Path) -> None:
    """Raise unless *folder* is this user's: what lies in a sandbox is run.

    Raises:
        RequestError: It is another user's.
    """
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        message = (
            f"Folder {str(folder)!r} of a sandbox must belong to the user with uid {os.geteuid()}; "
            f"its owner has uid {owner}. Name another one with --folder."
        )
        raise RequestError(message)


def free_ports(count: int) -> list[int]:
    """Return *count* ports that nobody listens on, far from each other and from what others pick.

    Raises:
        RequestError: There are not so many.
    """
    ports: set[int] = set()
    for _ in range(_MOST_TRIES):
        if len(ports) == count:
            break
        port = _PORTS.start + secrets.randbelow(len(_PORTS))
        with socket.socket() as probe, suppress(OSError):  # somebody listens there
            probe.bind(("", port))
            ports.add(port)
    else:
        message = f"Machine must have {count} free ports below {_PORTS.stop}; got {len(ports)}. Ask for fewer nodes."
        raise RequestError(message)

    return sorted(ports)
