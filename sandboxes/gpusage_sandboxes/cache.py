"""What a sandbox has fetched, kept for the next one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
