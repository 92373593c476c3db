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
from dataclasses import dataclass
from pathlib import Path

from gpusage.api import advisor
from gpusage.cli.doctor import OwnEvidence, gather_own
from gpusage.configuration_file import read_configuration
from gpusage.service.client import read_status
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import Cluster
from gpusage_slurm import scontrol
from gpusage_slurm.address import sockets
from gpusage_slurm.cluster.pools import pyslurm_version, read_cluster
from gpusage_slurm.doctor.releases import dry_run_crashes
from gpusage_slurm.installing.install import Site, find_site, plan_installation
from gpusage_slurm.installing.node_side import FOLDER, PROLOG, SAMPLER, named

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
        own: Of gpusage itself.
        daemon_uid: As whom gpusaged runs, which owns its socket; ``None`` where that cannot be told.
        partitions: As slurmctld describes them.
        sampler: The Python that samples what jobs do, where this host is a node; empty where there is none.
        answered: Whether a dry-run submission reached the daemon; ``None`` where it was not tried.
    """

    version: tuple[int, int] | None
    settings: Mapping[str, str]
    trouble: str
    site: Site | None
    scripts: Mapping[str, str]
    gres_conf: str
    cluster: Cluster | None
    own: OwnEvidence
    answered: bool | None
    lua_modules: frozenset[str]
    pyslurm: tuple[int, int] | None
    outdated: tuple[str, ...] | None = ()
    daemon_uid: int | None = None
    partitions: tuple[scontrol.Line, ...] = ()
    sampler: str = ""


def gather(slurm_conf: Path | None = None) -> Evidence:
    """Return all evidence that this host gives."""
    version, settings, trouble = _slurm()
    configured = settings.get("slurm_conf")
    site, site_trouble = _site(slurm_conf or (Path(configured) if configured else None))
    scripts = _scripts(site) if site else {}
    own = _own(scripts.get("job_submit.lua", ""))
    return Evidence(
        version=version,
        settings=settings,
        trouble=trouble or site_trouble,
        site=site,
        scripts=scripts,
        gres_conf=_text(site.folder / "gres.conf") if site else "",
        cluster=_cluster() if settings else None,
        own=own,
        answered=_dry_run(own.socket) if settings and own.status and not dry_run_crashes(settings) else None,
        lua_modules=frozenset(_lua_modules()),
        pyslurm=pyslurm_version(),
        outdated=_outdated(site),
        daemon_uid=_owner(own.socket) if own.status else None,
        partitions=_partitions() if settings else (),
        sampler=sampler_of(named(settings, PROLOG) or ""),
    )


def _site(slurm_conf: Path | None) -> tuple[Site | None, str]:
    """Return the site's files, or nothing and why they are not found."""
    try:
        return find_site(slurm_conf), ""
    except GpuUsageError as error:
        return None, str(error)


def _scripts(site: Site) -> dict[str, str]:
    paths = {name: site.folder / name for name in ("job_submit.lua", "cli_filter.lua")}
    return {name: _text(path) for name, path in {**paths, "slurm.conf": site.slurm_conf}.items()}


def _own(job_submit: str) -> OwnEvidence:
    configuration, trouble = read_configuration()
    return gather_own(configuration, trouble, sockets(None if trouble else configuration, job_submit))


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


def _partitions() -> tuple[scontrol.Line, ...]:
    try:
        return scontrol.partitions()
    except GpuUsageError:
        return ()


def _cluster() -> Cluster | None:
    try:
        return read_cluster(scontrol.partitions(), advisor().catalogue)
    except GpuUsageError:
        return None


def sampler_of(prolog: str) -> str:
    """Return the Python that samples jobs where slurm.conf names *prolog* or a wrapper of it; empty for none."""
    beside = Path(prolog).resolve().parent / SAMPLER
    script = FOLDER / SAMPLER if str(PROLOG.path) in _text(Path(prolog)) else beside
    try:
        done = subprocess.run([script, "python"], capture_output=True, timeout=scontrol.DEADLINE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip()


def _dry_run(socket: str) -> bool:
    """Submit nothing, and tell whether the daemon at *socket* was asked about it, if need be after the Lua's rest."""
    command = ["sbatch", "--test-only", "--job-name=gpusage-doctor", "--gres=gpu:1", "--comment=gpusage=off"]
    environment = scontrol.environment() | {"SLURM_GPUSAGE_DRY_RUN": "1"}
    for rest_s in (0, LONGEST_REST_S):
        time.sleep(rest_s)
        before = _asks(socket)
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
