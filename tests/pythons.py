"""Pythons of Debian's releases, fetched as the sandbox fetches Slurm and kept beside it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.host import build_once, cache_folder
from gpusage_sandboxes.packages import choose_source, download, read_host_sources, read_os_release, require_apt, unpack
from gpusage_sandboxes.slurm.installation import prepare_patchelf


def python_of(release: str) -> Path:
    """Return the Python of *release*, which runs where it lies with the C library of its release.

    Raises:
        RequestError: The host has no apt, or its mirror no such release.
    """
    require_apt()
    folder = cache_folder() / "pythons" / release

    def build(partial: Path) -> None:
        source = choose_source(read_host_sources(), read_os_release(), release)
        unpack(download(("python3",), source, folder.with_name(f".{release}.apt")), partial)
        program = (partial / "usr/bin/python3").resolve()
        (loader,) = {each.resolve() for each in partial.glob("usr/lib/*/ld-linux*")}
        libraries = folder / loader.parent.relative_to(partial.resolve())
        words = ["--set-interpreter", libraries / loader.name, "--force-rpath", "--set-rpath", libraries, program]
        subprocess.run([prepare_patchelf(), *words], check=True)

    build_once(folder, (folder / "usr/bin/python3").exists, build)
    program = folder / "usr/bin/python3"
    if not program.exists():
        message = f"Release {release!r} must bring {program}; it does not."
        raise RequestError(message)
    return program
