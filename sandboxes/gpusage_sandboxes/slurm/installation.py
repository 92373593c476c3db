"""One release's Slurm in a cache folder, made to run where it lies.

1. A finished installation is complete: it is built beside its place and renamed into it.
2. It is never changed afterwards, so any number of sandboxes, and of users, share it.
3. Its programs load only its own libraries, C library included: patchelf writes where they lie into each.
4. From 26.05 on its slurmd looks for no login environment, which it could have only as root: a job with --export=NONE
   gets what was passed, as earlier releases do it by themselves. Slurm would hold such a job, and no setting of
   slurm.conf changes that; a job_submit.lua could, and would be in the way of the one that a trial puts there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.host import Report, build_once, cache_folder, silent
from gpusage_sandboxes.packages import choose_source, download, read_host_sources, read_os_release, require_apt, unpack
from gpusage_slurm.scontrol import SANDBOX_RECORD

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

    def build(partial: Path) -> None:
        fetched = folder.with_name(f".{source.suite}.apt")
        archives = download((_NAME,), source, fetched, report)
        unpack([path for path in archives if path.name.startswith(f"{_NAME}_")], partial)
        shutil.rmtree(fetched)

    build_once(folder, program.is_file, build)
    if not program.is_file():
        message = f"Package {_NAME} must bring {program}; it does not. Install patchelf on the host."
        raise RequestError(message)
    return program


_CACHE = "slurm-3"  # another number for another way of building: sandboxes may still run from what was built before
_PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "lua-socket", "lua-posix")
_WITH_ACCOUNTING = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server-core", "slurmrestd")
_PROGRAM = re.compile(r"^(s[a-z]+|munged|munge|unmunge|remunge|mariadbd)(-wlm)?$")
_OLDEST = (22, 5)
_HOLDS_WITHOUT_LOGIN = (26, 5)
_WANTS_LOGIN, _WANTS_NO_LOGIN = b"SLURM_GET_USER_ENV=1\0", b"SLURM_GET_USER_ENV=-\0"  # what slurmd looks for in a job


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag="gpusage.slurm-installation/1", tag_field="schema"):
    """What an installation says of itself, in its ``installation.json``."""

    release: str
    version: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Slurm of one release, ready to run.

    Attributes:
        release: The Debian or Ubuntu suite that it came from, for example ``trixie``.
        version: Slurm's own, for example ``24.11.5``.
        folder: What to keep: moving it breaks it.
    """

    release: str
    version: str
    folder: Path

    @property
    def programs(self) -> Path:
        """The folder of its programs under their plain names; goes on PATH."""
        return self.folder / "bin"

    @property
    def root(self) -> Path:
        """The unpacked file system."""
        return self.folder / "root"

    @property
    def slurmstepd(self) -> Path:
        """The program that slurmd starts for each step."""
        return next(self.root.glob("usr/sbin/slurmstepd*"))

    @property
    def plugins(self) -> Path:
        """The folder that slurm.conf calls PluginDir."""
        return next(self.root.glob("usr/lib/*/slurm-wlm"))

    @property
    def major_minor(self) -> tuple[int, int]:
        """Slurm's version, for comparisons: ``(24, 11)``."""
        return _major_minor(self.version)

    def lua_environment(self) -> dict[str, str]:
        """Return the variables with which any Lua finds this release's LuaSocket and luaposix.

        Lua 5.1 reads LUA_PATH, later ones prefer a variable of their own version, so each finds only its own.
        """
        variables: dict[str, str] = {}
        for scripts in sorted(self.root.glob("usr/share/lua/5.*")):
            version = scripts.name
            suffix = "" if version == "5.1" else f"_{version.replace('.', '_')}"
            libraries = next(self.root.glob(f"usr/lib/*/lua/{version}"), scripts)
            variables[f"LUA_PATH{suffix}"] = f"{scripts}/?.lua;{scripts}/?/init.lua;;"
            variables[f"LUA_CPATH{suffix}"] = f"{libraries}/?.so;;"

        return variables


def prepare_installation(
    release: str | None = None, *, accounting: bool = False, cache: Path | None = None, report: Report = silent
) -> Installation:
    """Return Slurm of *release* (the host's own where ``None``), fetched into the cache on first use.

    Args:
        release: The suite's name.
        accounting: Whether slurmdbd, its MariaDB and slurmrestd are in it.
        cache: Where installations are kept.
        report: Hears how it goes.

    Raises:
        RequestError: apt is missing, or the release or patchelf cannot be had.
    """
    require_apt()
    if release is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.]*", release):
        message = f"Release must be a suite's name in small letters; got {release!r}. Write, for example, trixie."
        raise RequestError(message)
    source = choose_source(read_host_sources(), read_os_release(), release)
    name = f"{source.suite}-accounting" if accounting else source.suite
    folder = (cache or cache_folder()).absolute() / _CACHE / name

    def build(partial: Path) -> None:
        fetched = folder.with_name(f".{name}.apt")
        archives = download((*_PACKAGES, *(_WITH_ACCOUNTING if accounting else ())), source, fetched, report)
        version = slurm_version(archives)
        unpack(archives, partial / "root", report)

        root = partial / "root"
        programs = [path for path in sorted(root.glob("usr/*bin/*")) if _PROGRAM.match(path.name) and _is_elf(path)]
        (partial / "bin").mkdir()
        libraries = [path for path in [*root.glob("lib/*-linux-*"), *root.glob("usr/lib/*-linux-*")] if path.is_dir()]
        libraries += root.glob("usr/lib/*/slurm-wlm")
        search_path = ":".join(str(folder / path.relative_to(partial)) for path in libraries)
        loader = folder / _loader(root, programs[0]).relative_to(partial)
        for number, program in enumerate(programs):
            report("patch", number, len(programs))
            _patchelf("--set-interpreter", str(loader), "--force-rpath", "--set-rpath", search_path, str(program))
            plain = program.name.removesuffix("-wlm")
            (partial / "bin" / plain).symlink_to(folder / program.relative_to(partial))
        report("patch", len(programs), len(programs))

        if _major_minor(version) >= _HOLDS_WITHOUT_LOGIN:
            leave_login_alone(partial / (partial / "bin" / "slurmd").readlink().relative_to(folder))
        record = _Record(release=source.suite, version=version, folder=str(folder))
        (partial / SANDBOX_RECORD).write_bytes(msgspec.json.encode(record))
        shutil.rmtree(fetched)

    build_once(folder, lambda: read_installation(folder) is not None, build)
    ready = read_installation(folder)
    if ready is None:
        message = f"Folder {folder} must hold the installation that was just built; got none. Try again."
        raise RequestError(message)
    return ready


def read_installation(folder: Path) -> Installation | None:
    """Return the installation in *folder*, ``None`` where there is none or it was moved."""
    try:
        record = msgspec.json.decode((folder / SANDBOX_RECORD).read_bytes(), type=_Record)
    except (OSError, msgspec.MsgspecError):
        return None
    if record.folder != str(folder):
        return None
    return Installation(release=record.release, version=record.version, folder=folder)


def slurm_version(archives: Sequence[Path]) -> str:
    """Return Slurm's version as the archives' names have it: ``slurmctld_24.11.5-4_amd64.deb`` is 24.11.5."""
    names = " ".join(archive.name for archive in archives)
    match = re.search(r"\bslurmctld_(?:\d+%3a)?(\d+\.\d+(?:\.\d+)*)", names)
    if match is None:
        message = f"The release must bring slurmctld; got {len(archives)} packages without it. Use another --release."
        raise RequestError(message)

    version = match[1]
    if _major_minor(version) < _OLDEST:
        message = f"Slurm must be 22.05 or newer; the release has {version}. Name a later one with --release."
        raise RequestError(message)
    return version


def _major_minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def leave_login_alone(slurmd: Path) -> None:
    """Have the program *slurmd* look for no login environment.

    Raises:
        RequestError: It does not ask for one in exactly one place, as the releases do that were tried.
    """
    program = slurmd.read_bytes()
    count = program.count(_WANTS_LOGIN)
    if count != 1:
        message = f"{slurmd} must ask for a login environment in one place; found {count}. Use another --release."
        raise RequestError(message)
    slurmd.write_bytes(program.replace(_WANTS_LOGIN, _WANTS_NO_LOGIN))


def _loader(root: Path, program: Path) -> Path:
    """Return the dynamic loader inside *root* that *program* asks for by its path on a whole system."""
    name = Path(_patchelf("--print-interpreter", str(program)).strip()).name
    folders = (root / "lib", root / "lib64", root / "usr" / "lib", root / "usr" / "lib64")
    for folder in folders:
        for path in folder.rglob(name):
            if path.is_file() and path.resolve().is_relative_to(root.resolve()):
                return path

    message = f"The release's C library must bring the loader {name}; got none below {root}. Use another --release."
    raise RequestError(message)


def _is_elf(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _patchelf(*arguments: str) -> str:
    command = [str(prepare_patchelf()), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
