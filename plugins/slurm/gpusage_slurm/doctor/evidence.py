"""The state of an installation on this host: collected once, so that every check can be a pure function of it.

Invariants:

1. Collecting never fails: what is unavailable is ``None``, or a text that says why.
2. Nothing is changed; the dry run of a submission is `sbatch --test-only`.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpusage.cli.admin import Finding, OwnEvidence, failed, gather_own, warned
from gpusage.decisions.advisor import advisor
from gpusage.node.dividing import libexec_folder
from gpusage.service.client import read_status
from gpusage.settings.configuration_file import read_configuration
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import Cluster
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.limits import Limit, read_books, unseen_limits
from gpusage_slurm.cluster.nodes import pyslurm_version
from gpusage_slurm.cluster.pools import read_cluster
from gpusage_slurm.doctor.node_gpus import exclusive_gpus, foreign_mps_daemons
from gpusage_slurm.install.node_scripts import PROLOG, SAMPLER, script_path
from gpusage_slurm.install.site import Site, find_site, plan_installation, socket_candidates

# In these slurmctld may crash at `sbatch --test-only`.
_DRY_RUN_CRASHES = ((26, 5, 0), (26, 5, 1))
_MENDED = ((25, 5, 9), (25, 11, 8), (26, 5, 4))
"""The first of each series without the six vulnerabilities that these three mended; older series have no such one."""

LONGEST_PAUSE_S = 2.5
"""For which gpusage.lua leaves a daemon in peace that did not answer in time, and a little more."""
_LUA_FOLDERS = ("/usr/share/lua", "/usr/local/share/lua")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The input of all checks.

    Attributes:
        settings: Of `scontrol show config`; empty where slurmctld does not answer, and *trouble* says why.
        scripts: Texts of slurm.conf, cgroup.conf, job_submit.lua and cli_filter.lua, by name.
        outdated: Names of the files that installing again would change; ``None`` if that cannot be known.
        own: Of gpusage itself.
        daemon_uid: As whom gpusaged runs, which owns its socket; ``None`` if that cannot be known.
        partitions: As slurmctld describes them.
        limits: On GPUs, those that do not count shares; ``None`` where slurmdbd does not tell, and *limits_trouble*
            says why.
        foreign_mps, exclusive_gpus: As `node_gpus` yields them.
        sampler: The Python that samples what jobs do, where this host is a node; empty where there is none.
        dry_run_arrived: Whether a dry-run submission reached the daemon; ``None`` where it was not tried.
    """

    version: tuple[int, int] | None
    settings: Mapping[str, str]
    trouble: str
    site: Site | None
    scripts: Mapping[str, str]
    gres_conf: str
    cluster: Cluster | None
    own: OwnEvidence
    dry_run_arrived: bool | None
    lua_modules: frozenset[str]
    pyslurm: tuple[int, int] | None
    outdated: tuple[str, ...] | None = ()
    daemon_uid: int | None = None
    partitions: tuple[scontrol.Line, ...] = ()
    sampler: str = ""
    limits: tuple[Limit, ...] | None = ()
    limits_trouble: str = ""
    foreign_mps: tuple[str, ...] = ()
    exclusive_gpus: tuple[str, ...] = ()

    def unshared(self, name: str, observation: str, todo: str) -> Finding:
        """Return what keeps GPUs from being shared as it should be: harmless until jobs are rewritten."""
        verdict = failed if self.own.configuration.mode == "enforce" else warned
        return verdict(name, observation, todo)


def dry_run_crashes(settings: Mapping[str, str]) -> bool:
    """Return whether `sbatch --test-only` could crash this slurmctld."""
    return scontrol.release(settings) in _DRY_RUN_CRASHES


def is_vulnerable(settings: Mapping[str, str]) -> bool:
    """Return whether this slurmctld's release, as its makers made it, has vulnerabilities that a later mended."""
    running = scontrol.release(settings)
    if running is None:
        return False
    mended = next((each for each in _MENDED if each[:2] == running[:2]), None)
    return running < mended if mended else running < _MENDED[0]


def collect_evidence(slurm_conf: Path | None = None) -> Evidence:
    """Return the evidence of this host."""
    version: tuple[int, int] | None = None
    settings: Mapping[str, str] = {}
    trouble = ""
    try:
        version, settings = scontrol.version(), scontrol.configuration()
    except GpuUsageError as error:
        trouble = str(error)

    # slurmctld knows best which slurm.conf it has read.
    site, scripts = None, {}
    conf = slurm_conf or (Path(settings["slurm_conf"]) if settings.get("slurm_conf") else None)
    try:
        site = find_site(conf)
    except GpuUsageError as error:
        trouble = trouble or str(error)
    if site:
        paths = {name: site.folder / name for name in ("job_submit.lua", "cli_filter.lua", "cgroup.conf")}
        scripts = {name: read_or_empty(path) for name, path in {**paths, "slurm.conf": site.slurm_conf}.items()}

    configuration, configuration_trouble = read_configuration()
    good_configuration = None if configuration_trouble else configuration
    sockets = socket_candidates(good_configuration, scripts.get("job_submit.lua", ""))
    own = gather_own(configuration, configuration_trouble, sockets)

    partitions: tuple[scontrol.Line, ...] = ()
    cluster, limits, limits_trouble = None, None, ""
    if settings:
        partitions = _or_else(scontrol.partitions, partitions)
        cluster = _or_else(lambda: read_cluster(partitions, advisor().catalogue), None)
        try:
            pools = cluster.pools if cluster else ()
            limits = tuple(unseen_limits(read_books(settings), settings, partitions, pools))
        except GpuUsageError as error:
            limits_trouble = str(error)
    return Evidence(
        version=version,
        settings=settings,
        trouble=trouble,
        site=site,
        scripts=scripts,
        gres_conf=read_or_empty(site.folder / "gres.conf") if site else "",
        cluster=cluster,
        limits=limits,
        limits_trouble=limits_trouble,
        foreign_mps=tuple(foreign_mps_daemons()),
        exclusive_gpus=tuple(exclusive_gpus()),
        own=own,
        dry_run_arrived=_dry_run(own.socket) if settings and own.status and not dry_run_crashes(settings) else None,
        lua_modules=_lua_modules(),
        pyslurm=pyslurm_version(),
        outdated=_or_else(lambda: tuple(edit.path.name for edit in plan_installation(site) if edit.changes), None)
        if site
        else None,
        daemon_uid=_or_else(lambda: Path(own.socket).stat().st_uid, None) if own.status else None,
        partitions=partitions,
        sampler=sampler_python(script_path(settings, PROLOG) or ""),
    )


def _or_else(read: Callable[[], _T], fallback: _T) -> _T:
    """Return the result of *read*, *fallback* where it fails."""
    try:
        return read()
    except (GpuUsageError, OSError):
        return fallback


def read_or_empty(path: Path) -> str:
    """Return the text of a file, empty where it cannot be read."""
    return _or_else(lambda: path.read_text(encoding="utf-8", errors="replace"), "")


def sampler_python(prolog: str) -> str:
    """Return the Python that samples jobs where slurm.conf names *prolog* or a wrapper of it; empty for none."""
    # A wrapper names the prolog's copy, beside which the sampler lies; any other prolog has it beside itself.
    copies = libexec_folder()
    is_wrapper = str(PROLOG.copy(copies)) in read_or_empty(Path(prolog))
    script = (copies if is_wrapper else Path(prolog).resolve().parent) / SAMPLER

    try:
        done = subprocess.run([script, "python"], capture_output=True, timeout=scontrol.DEADLINE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip()


def _dry_run(socket: str) -> bool:
    """Return whether a dry run of sbatch reaches the daemon at *socket*, if need be after the pause of gpusage.lua."""
    command = ["sbatch", "--test-only", "--job-name=gpusage-doctor", "--gres=gpu:1", "--comment=gpusage=off"]
    environment = scontrol.environment() | {"SLURM_GPUSAGE_DRY_RUN": "1"}
    for pause_s in (0, LONGEST_PAUSE_S):
        time.sleep(pause_s)

        # gpusaged counts the questions that reach it: one more after the dry run means that ours did.
        before = _request_count(socket)
        try:
            subprocess.run(
                [*command, "--wrap=true"],
                env=environment,
                capture_output=True,
                timeout=scontrol.DEADLINE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        if _request_count(socket) > before:
            return True
    return False


def _request_count(socket: str) -> int:
    _, status, _ = read_status((socket,))
    return int((status or {}).get("lines", {}).get("requests", 0))


def _lua_modules() -> frozenset[str]:
    """Return the required Lua modules that lie on some Lua's path."""
    folders = [folder for root in _LUA_FOLDERS for folder in Path(root).glob("5.*")]
    for key, value in os.environ.items():
        if key.startswith("LUA_PATH"):
            folders += [Path(entry.partition("?")[0]) for entry in value.split(";") if entry]

    return frozenset(
        module
        for module, name in (("socket", "socket.lua"), ("posix", "posix"))
        if any((folder / name).exists() or (folder / f"{name}.lua").exists() for folder in folders)
    )
