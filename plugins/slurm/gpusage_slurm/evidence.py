"""What a host tells about an installation: gathered once, so that every check can be a pure function of it.

Invariants:

1. Gathering never fails: what cannot be had is ``None``, or a text that says why.
2. Nothing is changed; the dry run of a submission is `sbatch --test-only`.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpusage.api import advisor
from gpusage.configuration import Configuration
from gpusage.configuration_file import read_configuration
from gpusage.plugins.loading import load_hooks
from gpusage.service.client import in_force, read_status
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import Cluster
from gpusage_slurm import scontrol
from gpusage_slurm.address import sockets
from gpusage_slurm.cluster import pyslurm_version, read_cluster
from gpusage_slurm.install import Site, find_site, plan_installation
from gpusage_slurm.releases import dry_run_crashes

LONGEST_REST_S = 2.5
"""For which gpusage.lua leaves a daemon in peace that did not answer in time, and a little more."""
_LUA_FOLDERS = ("/usr/share/lua", "/usr/local/share/lua")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the checks read.

    Attributes:
        settings: Of `scontrol show config`; empty where slurmctld does not answer, and *trouble* says why.
        scripts: Texts of slurm.conf, job_submit.lua and cli_filter.lua, by name.
        outdated: Names of the files that installing again would change; ``None`` where that cannot be told.
        configuration: Where the file is broken, what gpusaged says of the settings that it goes on with.
        socket: Where gpusaged answers, or should.
        daemon_uid: As whom gpusaged runs, which owns its socket; ``None`` where that cannot be told.
        answered: Whether a dry-run submission reached the daemon; ``None`` where it was not tried.
        plugin_troubles: What is wrong with plugins, by name.
    """

    version: tuple[int, int] | None
    settings: Mapping[str, str]
    trouble: str
    site: Site | None
    scripts: Mapping[str, str]
    gres_conf: str
    cluster: Cluster | None
    configuration: Configuration
    configuration_trouble: str
    status: Mapping[str, Any] | None
    status_trouble: str
    socket: str
    answered: bool | None
    lua_modules: frozenset[str]
    pyslurm: tuple[int, int] | None
    killed: bool
    outdated: tuple[str, ...] | None = ()
    daemon_uid: int | None = None
    plugin_troubles: Mapping[str, str] = field(default_factory=dict)


def gather(slurm_conf: Path | None = None) -> Evidence:
    """Return all evidence that this host gives."""
    version, settings, trouble = _slurm()
    try:
        configured = settings.get("slurm_conf")
        site: Site | None = find_site(slurm_conf or (Path(configured) if configured else None))
    except GpuUsageError as error:
        site, trouble = None, trouble or str(error)
    names = ("job_submit.lua", "cli_filter.lua")
    scripts = {name: _text(site.folder / name) for name in names} if site else {}
    configuration, configuration_trouble = read_configuration()
    paths = sockets(None if configuration_trouble else configuration, scripts.get("job_submit.lua", ""))
    socket, status, status_trouble = read_status(paths)
    if configuration_trouble and status:
        configuration = in_force(status)
    if site:
        scripts["slurm.conf"] = _text(site.slurm_conf)
    return Evidence(
        version=version,
        settings=settings,
        trouble=trouble,
        site=site,
        scripts=scripts,
        gres_conf=_text(site.folder / "gres.conf") if site else "",
        cluster=_cluster() if settings else None,
        configuration=configuration,
        configuration_trouble=configuration_trouble,
        status=status,
        status_trouble=status_trouble,
        socket=socket,
        answered=_dry_run(socket) if settings and status and not dry_run_crashes(settings) else None,
        lua_modules=frozenset(_lua_modules()),
        pyslurm=pyslurm_version(),
        killed=Path(configuration.kill_switch).exists(),
        plugin_troubles=load_hooks().troubles(),
        outdated=_outdated(site),
        daemon_uid=_owner(socket) if status else None,
    )


def _owner(socket: str) -> int | None:
    try:
        return Path(socket).stat().st_uid
    except OSError:
        return None


def _outdated(site: Site | None) -> tuple[str, ...] | None:
    try:
        return tuple(edit.path.name for edit in plan_installation(site) if edit.changes) if site else None
    except GpuUsageError:
        return None


def _slurm() -> tuple[tuple[int, int] | None, Mapping[str, str], str]:
    try:
        return scontrol.version(), scontrol.configuration(), ""
    except GpuUsageError as error:
        return None, {}, str(error)


def _cluster() -> Cluster | None:
    try:
        return read_cluster(scontrol.partitions(), advisor().catalogue)
    except GpuUsageError:
        return None


def _dry_run(socket: str) -> bool:
    """Submit nothing, and tell whether the daemon at *socket* was asked about it, if need be after the Lua's rest."""
    command = ["sbatch", "--test-only", "--job-name=gpusage-doctor", "--gres=gpu:1", "--comment=gpusage=off"]
    for rest_s in (0, LONGEST_REST_S):
        time.sleep(rest_s)
        before = _asks(socket)
        try:
            subprocess.run([*command, "--wrap=true"], capture_output=True, timeout=scontrol.DEADLINE_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        if _asks(socket) > before:
            return True
    return False


def _asks(socket: str) -> int:
    _, status, _ = read_status((socket,))
    return int((status or {}).get("asks", {}).get("asked", 0))


def _lua_modules() -> Iterable[str]:
    """Yield those of the Lua modules we use that lie where some Lua looks for them."""
    folders = [folder for root in _LUA_FOLDERS for folder in Path(root).glob("5.*")]
    for key, value in os.environ.items():
        if key.startswith("LUA_PATH"):
            folders += [Path(entry.partition("?")[0]) for entry in value.split(";") if entry]
    for module, name in (("socket", "socket.lua"), ("posix", "posix")):
        if any((folder / name).exists() or (folder / f"{name}.lua").exists() for folder in folders):
            yield module


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
