"""The state of an installation on a host and its cluster: read once, so that every check is a pure function of it.

Invariants:

1. An inspection never fails: what is not available is ``None``, or a text with the reason.
2. Nothing is changed.
"""

from __future__ import annotations

import pwd
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpusage.cli.admin import OwnEvidence, gather_own
from gpusage.decisions.advisor import advisor
from gpusage.node.dividing.copies import PYTHON, plan_node_programs
from gpusage.service.configuration_watch import known_uids
from gpusage.settings.configuration import Configuration, DaemonSettings
from gpusage.settings.configuration_file import read_configuration
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import Cluster
from gpusage_yarn.cluster.configuration import (
    ALLOCATOR,
    CALCULATOR,
    CLASSES,
    LISTENERS,
    PROCESSORS,
    RULES,
    SAMPLER,
    SCHEDULER,
    SITE,
    SOCKET,
    conf_folder,
    read_settings,
    require_addresses,
    sockets,
)
from gpusage_yarn.cluster.jmx import (
    MAX_NODES,
    MAX_NODES_PER_SUBMISSION,
    NODES_LIMIT_S,
    JmxReport,
    query_daemon,
    query_nodes,
    query_setting,
)
from gpusage_yarn.cluster.resource_manager import ResourceManager
from gpusage_yarn.cluster.snapshot import ClusterSnapshot, NodeState, build_cluster, read_snapshot
from gpusage_yarn.install.classes import configured_classes, load_classes
from gpusage_yarn.install.site import DEVICES, SHARED_GPUS, are_gpus_divided
from gpusage_yarn.settings import YarnSettings

SETTINGS = (
    RULES,
    ALLOCATOR,
    PROCESSORS,
    "yarn.resourcemanager.scheduler.class",
    "yarn.node-labels.enabled",
    "yarn.resourcemanager.recovery.enabled",
    "yarn.scheduler.minimum-allocation-mb",
    SOCKET,
    "gpusage.switch-file",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What the checks read.

    Attributes:
        own: Of gpusage itself.
        snapshot: ``None`` where no ResourceManager answers; *trouble* has the reason.
        settings: The ResourceManager's, as far as it shows them.
        manager: The ResourceManager that is active.
        others: Those that may take over.
        user: The ResourceManager's, where it runs on this host.
        nodes: NodeManagers that offer shares, at most `MAX_NODES` of them.
        divided: The names of those that offer whole GPUs as well, and say which are which.
        loaded: For each of our classes that is configured here, why it cannot be made, or ``""``; ``None`` where
            that could not be tried, and *loading_trouble* says why.
        sampler: What samples containers on this host; ``None`` where it is no node of ours.
        old_copies: Files that its NodeManager runs, and that are not as this gpusage has them.
    """

    folder: Path
    own: OwnEvidence
    snapshot: ClusterSnapshot | None = None
    cluster: Cluster | None = None
    trouble: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    manager: JmxReport | None = None
    others: tuple[JmxReport, ...] = ()
    user: ManagerUser | None = None
    nodes: tuple[JmxReport, ...] = ()
    divided: frozenset[str] = frozenset()
    loaded: Mapping[str, str] | None = None
    loading_trouble: str = ""
    sampler: str | None = None
    old_copies: tuple[Path, ...] = ()


def inspect_installation(folder: Path | None = None, addresses: tuple[str, ...] = ()) -> Inspection:
    """Return the state of the installation on this host and its cluster."""
    configuration, trouble = read_configuration()
    chosen = conf_folder(folder or configuration.of_manager(YarnSettings).conf_dir)
    loaded, loading_trouble = _load_configured_classes(chosen)
    cluster, command = _of_cluster(chosen, configuration, addresses), read_sampler_command(chosen)
    manager_socket = cluster.get("settings", {}).get(SOCKET)
    return Inspection(
        folder=chosen,
        own=gather_own(configuration, trouble, sockets(None if trouble else configuration, manager_socket)),
        loaded=loaded,
        loading_trouble=loading_trouble,
        sampler=command,
        old_copies=_old_copies(Path((command or "").partition(" ")[0])),
        **cluster,
    )


def _of_cluster(folder: Path, configuration: Configuration, addresses: tuple[str, ...]) -> dict[str, Any]:
    """Return what the ResourceManager and its nodes say, by the names of `Inspection`."""
    settings = configuration.of_manager(YarnSettings)
    try:
        known = require_addresses(settings, addresses)
        manager = ResourceManager(known, patience_s=0)
        snapshot = read_snapshot(lambda path: manager.request_once("GET", path), settings.share_resource)
        # The ResourceManager's /conf leaves out capacity-scheduler.xml; on its own host the file is here.
        calculator = read_settings(folder / SCHEDULER).get(CALCULATOR)
        values = {CALCULATOR: calculator, **{name: manager.settings(name) for name in SETTINGS}}
    except GpuUsageError as error:
        return {"trouble": str(error)}
    sharing = [node for node in snapshot.nodes if node.usable and node.total.share][:MAX_NODES]
    scheme = manager.address.partition(":")[0]
    answers = query_nodes(sharing, scheme, NODES_LIMIT_S)
    nodes = tuple(answers.get(node.name, JmxReport(name=node.name, trouble="no answer in time")) for node in sharing)
    return {
        "snapshot": snapshot,
        "cluster": build_cluster(snapshot, advisor().catalogue),
        "settings": {name: value for name, value in values.items() if value is not None},
        "manager": query_daemon("ResourceManager", manager.address),
        "others": tuple(query_daemon(address, address) for address in known if address != manager.address),
        "user": manager_user(manager.address, configuration.daemon),
        "nodes": nodes,
        "divided": frozenset(_nodes_dividing_gpus([node for node in sharing if node.name in answers], scheme)),
    }


def _nodes_dividing_gpus(nodes: Iterable[NodeState], scheme: str) -> Iterator[str]:
    """Yield the names of those of *nodes* that offer whole GPUs as well as shares, and say which are which."""
    for node in [each for each in nodes if each.gpus][:MAX_NODES_PER_SUBMISSION]:
        url = f"{scheme}://{node.address}"
        if are_gpus_divided({name: query_setting(url, name) for name in (SHARED_GPUS, DEVICES)}):
            yield node.name


def read_sampler_command(folder: Path) -> str | None:
    """Return the command that samples containers by the configuration in *folder*; ``None`` where it is of no node."""
    try:
        settings = read_settings(folder / SITE)
    except GpuUsageError:
        return None
    is_node = CLASSES[LISTENERS] in settings.get(LISTENERS, "")
    return settings.get(SAMPLER, "") if is_node else None


def _old_copies(program: Path) -> tuple[Path, ...]:
    """Return the copies beside *program*, if it is one, that another gpusage than this has written."""
    if program.name != PYTHON:
        return ()
    with suppress(GpuUsageError):
        return tuple(edit.path for edit in plan_node_programs(program.parent) if edit.changes and edit.path != program)
    return ()


def _load_configured_classes(folder: Path) -> tuple[Mapping[str, str] | None, str]:
    try:
        return load_classes(configured_classes(folder), folder), ""
    except GpuUsageError as error:
        return None, str(error)


_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerUser:
    """Who asks gpusaged on this host, and whether it gets an answer."""

    name: str
    allowed: bool


def manager_user(address: str, daemon: DaemonSettings) -> ManagerUser | None:
    """Return the user of the ResourceManager at *address*, ``None`` if it runs elsewhere."""
    parts = urlsplit(address)
    port = parts.port or _PORTS.get(parts.scheme, 0)
    uid = listener_uid(port) if _is_here(parts.hostname or "") else None
    if uid is None:
        return None
    uids, _ = known_uids(daemon.allowed_users)
    return ManagerUser(name=_name(uid), allowed=uid in uids or uid == _owner(Path(daemon.socket)))


def listener_uid(port: int, tables: Sequence[Path] = _TABLES) -> int | None:
    """Return the user id of who listens at *port* of this host, as the kernel's tables of sockets have it."""
    for table in tables:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, _, _, _, uid, *_ = line.split()
            if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                return int(uid)
    return None


def _is_here(host: str) -> bool:
    """Return whether *host* is this one: only its own addresses can be bound to."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, place) for family, _, _, _, place in addresses)


def _can_bind(family: int, place: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as own:
            own.bind(place)
    except OSError:
        return False
    return True


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
