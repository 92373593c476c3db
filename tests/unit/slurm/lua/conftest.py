"""Real Lua interpreters, the host's or fetched for the test, and a driver that plays slurmctld's part."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.host import lock
from gpusage_slurm.install.lua_scripts import LUA_FOLDER
from waiting import LIMIT_S

VERSIONS = ("5.1", "5.2", "5.3", "5.4")
CACHE = Path(os.environ.get("GPUSAGE_CACHE") or Path(__file__).parents[4] / ".cache" / "gpusage") / "lua"
DRIVER = Path(__file__).with_name("driver.lua")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lua:
    """One interpreter that finds LuaSocket."""

    version: str
    program: Path
    environment: Mapping[str, str]

    def run(self, *arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the interpreter to its end."""
        return subprocess.run(
            [self.program, *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=cwd,
            env={**os.environ, **self.environment, **environment},
        )

    def drive(self, body: str, **environment: str) -> dict[str, Any]:
        """Run *body* inside the driver, and return what it reports."""
        done = self.run(str(DRIVER), str(LUA_FOLDER), body, **environment)
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return report


@pytest.fixture(scope="session")
def fetched() -> Path | None:
    """Return a folder with the interpreters' packages unpacked, ``None`` where they cannot be had."""
    with lock(CACHE):  # the tests of another file may run beside these
        if not (CACHE / "root").is_dir():
            try:
                _fetch(CACHE)
            except (RequestError, subprocess.CalledProcessError):
                return None
    return CACHE / "root"


@pytest.fixture(params=VERSIONS)
def lua(request: pytest.FixtureRequest) -> Lua:
    """Return an interpreter of each version in its turn."""
    version = request.param
    host = shutil.which(f"lua{version}")
    if host and _has_socket(Lua(version=version, program=Path(host), environment={})):
        return Lua(version=version, program=Path(host), environment={})
    root = request.getfixturevalue("fetched")
    if root is None:
        pytest.skip(f"lua{version} with LuaSocket is neither here nor to be had")
    return _unpacked(version, root)


def _has_socket(lua: Lua) -> bool:
    return lua.run("-e", "require('socket.unix')").returncode == 0


def _unpacked(version: str, root: Path) -> Lua:
    libraries = next(root.glob("usr/lib/*-linux-*"))
    suffix = "" if version == "5.1" else f"_{version.replace('.', '_')}"
    return Lua(
        version=version,
        program=root / "usr" / "bin" / f"lua{version}",
        environment={
            "LD_LIBRARY_PATH": f"{libraries}:{root / libraries.relative_to(root / 'usr')}",
            f"LUA_PATH{suffix}": f"{root}/usr/share/lua/{version}/?.lua;;",
            f"LUA_CPATH{suffix}": f"{libraries}/lua/{version}/?.so;;",
        },
    )


def _fetch(folder: Path) -> None:
    """Unpack the interpreters and what only they need; the C library stays the host's."""
    from gpusage_sandboxes import packages  # most hosts need none of it

    packages.require_apt()
    source = packages.choose_source(packages.read_host_sources(), packages.read_os_release(), None)
    folder.mkdir(parents=True, exist_ok=True)
    options = packages._prepare(source, folder)
    packages._apt([*options, "update"], source)
    names = [f"lua{version}" for version in VERSIONS] + ["lua-socket"]
    listed = packages.parse_uris(packages._apt([*options, "install", "--print-uris", "--yes", *names], source))
    wanted = [name.partition("_")[0] for name in listed if re.match(r"lua|liblua|libreadline|libtinfo", name)]
    archives = folder / "debs"
    archives.mkdir(exist_ok=True)
    subprocess.run(["apt-get", *options, "download", *wanted], cwd=archives, check=True, capture_output=True)
    packages.unpack(sorted(archives.glob("*.deb")), folder / "unfinished")
    (folder / "unfinished").rename(folder / "root")


@pytest.fixture
def drive(lua: Lua) -> Callable[..., dict[str, Any]]:
    """Return the driver of this version."""
    return lua.drive
