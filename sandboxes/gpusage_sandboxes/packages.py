"""A private apt: fetches packages of one release with everything below them, as any user, host untouched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from gpusage.boundary.operating_system import user_name
from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.progress import Report, silent
from gpusage_sandboxes.sources import PackageSource, render_deb822

_POLL_S = 0.1


def require_apt() -> None:
    """Raise unless the host has what the sandbox needs to fetch and unpack packages.

    Raises:
        RequestError: apt-get or dpkg is not there.
    """
    missing = [name for name in ("apt-get", "dpkg") if shutil.which(name) is None]
    if missing:
        message = (
            f"The sandbox needs apt-get and dpkg, as Debian and Ubuntu have them; {' and '.join(missing)} "
            "not found on PATH. Run it on a Debian or Ubuntu machine, or try gpusage on a cluster that exists."
        )
        raise RequestError(message)


def download(packages: Sequence[str], source: PackageSource, folder: Path, report: Report = silent) -> tuple[Path, ...]:
    """Fetch *packages* and all that they depend on from *source* into *folder*, and return the archives.

    What an interrupted run had fetched is used again.

    Raises:
        RequestError: apt cannot reach the archive, or the archive has no such packages.
    """
    report("index", 0, 1)
    options = _prepare(source, folder)
    _apt([*options, "update"], source)
    _apt([*options, "autoclean"], source)  # of an interrupted run, what the archive has replaced since
    wanted = parse_uris(_apt([*options, "install", "--print-uris", "--yes", *packages], source))
    archives = folder / "cache" / "archives"
    total = sum(wanted.values())
    command = ["apt-get", *options, "install", "--download-only", "--yes", *packages]
    with (folder / "download.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment())
        with process:
            while process.poll() is None:
                report("download", _fetched(archives), total)
                time.sleep(_POLL_S)
    if process.returncode != 0:
        raise _apt_error(source, (folder / "download.log").read_text(encoding="utf-8", errors="replace"))
    report("download", total, total)
    return tuple(sorted(archives.glob("*.deb")))


def parse_uris(text: str) -> dict[str, int]:
    """Return name and bytes of each archive that ``apt-get --print-uris`` lists."""
    lines = re.findall(r"^'[^']+' (\S+\.deb) (\d+)", text, flags=re.MULTILINE)
    return {name: int(size) for name, size in lines}


def unpack(archives: Sequence[Path], root: Path, report: Report = silent) -> None:
    """Unpack *archives* into *root*, without running their scripts."""
    root.mkdir(parents=True)
    for number, archive in enumerate(archives):
        report("unpack", number, len(archives))
        subprocess.run(["dpkg", "--extract", str(archive), str(root)], check=True, capture_output=True)
    report("unpack", len(archives), len(archives))


def _prepare(source: PackageSource, folder: Path) -> list[str]:
    """Make the folders that apt expects and return the options that keep it inside them."""
    for name in ("state/lists/partial", "cache/archives/partial", "sources.d", "preferences.d"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    (folder / "sources.d" / "sandbox.sources").write_text(render_deb822(source), encoding="utf-8")
    settings = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Cache::archives": "archives",
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": folder / "sources.d",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": folder / "preferences.d",
        "APT::Sandbox::User": user_name(),
        "APT::Install-Recommends": "false",
        "APT::Get::List-Cleanup": "false",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",
    }
    return ["--quiet=2", *(f"--option={name}={value}" for name, value in settings.items())]


def _apt(arguments: Sequence[str], source: PackageSource) -> str:
    command = ["apt-get", *arguments]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=_environment()
    )
    if done.returncode != 0:
        raise _apt_error(source, done.stderr or done.stdout)
    return done.stdout


def _apt_error(source: PackageSource, output: str) -> RequestError:
    """Return apt's output as one sentence with its first error."""
    complaints = re.findall(r"^[EW]: *(.+?)\.?$", output, flags=re.MULTILINE)
    complaint = complaints[0] if complaints else "no word from apt-get"
    message = (
        f"Release {source.suite!r} must be one that the host's own apt mirror has; apt-get says: {complaint}. "
        "Check the network and the release's name."
    )
    return RequestError(message)


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}


def _fetched(archives: Path) -> int:
    """Return the bytes fetched so far, files in flight included; apt renames them under our feet."""
    return sum(_size(path) for path in [*archives.glob("*.deb"), *archives.glob("partial/*")])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
