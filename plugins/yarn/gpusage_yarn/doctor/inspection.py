"""The state of an installation on a host and its cluster: read once, so that every check is a pure function of it.

Invariants:

1. An inspection never fails: what is not available is ``None``, or a text with the reason.
2. Nothing is changed.
"""

from __future__ import annotations

import pwd
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpusage.cli.admin import OwnEvidence, gather_own
from gpusage.decisions.advisor import advisor
from gpusage.node.dividing.programs import PYTHON, plan_node_programs
from gpusage.service.configuration_watch import known_uids
from gpusage.settings.configuration import Configuration, DaemonSettings
from gpusage.settings.configuration_file import read_configuration
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import Cluster
from gpusage_yarn.cluster import configuration as hadoop
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
from gpusage_yarn.cluster.snapshot import ClusterSnapshot, build_cluster, read_snapshot
from gpusage_yarn.install.classes import configured_classes, load_classes
from gpusage_yarn.install.site import DEVICES, FOR_WHOLE_GPUS, SCHEDULER_CLASS, SHARED_GPUS, are_gpus_divided
from gpusage_yarn.settings import YarnSettings

SETTINGS = (
    hadoop.RULES,
    hadoop.ALLOCATOR,
    hadoop.PROCESSORS,
    SCHEDULER_CLASS,
    "yarn.node-labels.enabled",
    "yarn.resourcemanager.recovery.enabled",
    "yarn.scheduler.minimum-allocation-mb",
    hadoop.SOCKET,
    "gpusage.switch-file",
    FOR_WHOLE_GPUS,
)


_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerUser:
    """Who asks gpusaged on this host, and whether it gets an answer."""

    name: str
    allowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The input of all checks.

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
    chosen = hadoop.conf_folder(folder or configuration.of_manager(YarnSettings).conf_dir)
    loaded, loading_trouble = None, ""
    try:
        loaded = load_classes(configured_classes(chosen), chosen)
    except GpuUsageError as error:
        loading_trouble = str(error)

    # Copies that this host's NodeManager runs, and that another gpusage than this has written.
    command, old_copies = read_sampler_command(chosen), list[Path]()
    program = Path((command or "").partition(" ")[0])
    if program.name == PYTHON:
        with suppress(GpuUsageError):
            edits = plan_node_programs(program.parent)
            old_copies = [edit.path for edit in edits if edit.changes and edit.path != program]

    cluster = _cluster_parts(chosen, configuration, addresses)
    manager_socket = cluster.get("settings", {}).get(hadoop.SOCKET)
    return Inspection(
        folder=chosen,
        own=gather_own(configuration, trouble, hadoop.sockets(None if trouble else configuration, manager_socket)),
        loaded=loaded,
        loading_trouble=loading_trouble,
        sampler=command,
        old_copies=tuple(old_copies),
        **cluster,
    )


def _cluster_parts(folder: Path, configuration: Configuration, addresses: tuple[str, ...]) -> dict[str, Any]:
    """Return the answers of the ResourceManager and its nodes, by the names of `Inspection`."""
    settings = configuration.of_manager(YarnSettings)
    try:
        known = hadoop.require_addresses(settings, addresses)

        # A diagnosis waits for nobody.
        manager = ResourceManager(known, patience_s=0)
        snapshot = read_snapshot(lambda path: manager.request_once("GET", path), settings)

        # The ResourceManager's /conf leaves out capacity-scheduler.xml; on its own host the file is here.
        calculator = hadoop.read_settings(folder / hadoop.SCHEDULER).get(hadoop.CALCULATOR)
        values = {hadoop.CALCULATOR: calculator, **{name: manager.settings(name) for name in SETTINGS}}
    except GpuUsageError as error:
        return {"trouble": str(error)}

    sharing = [node for node in snapshot.nodes if node.usable and node.total.share][:MAX_NODES]
    scheme = manager.address.partition(":")[0]
    answers = query_nodes(sharing, scheme, NODES_LIMIT_S)
    nodes = tuple(answers.get(node.name, JmxReport(name=node.name, trouble="no answer in time")) for node in sharing)

    # Nodes that offer whole GPUs as well as shares, and say which are which.
    divided = set()
    for node in [node for node in sharing if node.name in answers and node.gpus][:MAX_NODES_PER_SUBMISSION]:
        url = f"{scheme}://{node.address}"
        if are_gpus_divided({name: query_setting(url, name) for name in (SHARED_GPUS, DEVICES)}):
            divided.add(node.name)
    return {
        "snapshot": snapshot,
        "cluster": build_cluster(snapshot, advisor().catalogue),
        "settings": {name: value for name, value in values.items() if value is not None},
        "manager": query_daemon("ResourceManager", manager.address),
        "others": tuple(query_daemon(address, address) for address in known if address != manager.address),
        "user": manager_user(manager.address, configuration.daemon),
        "nodes": nodes,
        "divided": frozenset(divided),
    }


def read_sampler_command(folder: Path) -> str | None:
    """Return the command that samples containers by the configuration in *folder*; ``None`` where it is of no node."""
    try:
        settings = hadoop.read_settings(folder / hadoop.SITE)
    except GpuUsageError:
        return None
    is_node = hadoop.CLASSES[hadoop.LISTENERS] in settings.get(hadoop.LISTENERS, "")
    return settings.get(hadoop.SAMPLER, "") if is_node else None


def manager_user(address: str, daemon: DaemonSettings) -> ManagerUser | None:
    """Return the user of the ResourceManager at *address*, ``None`` if it runs elsewhere."""
    parts = urlsplit(address)
    port = parts.port or _PORTS.get(parts.scheme, 0)

    # The kernel knows whose process listens; the port belongs to a ResourceManager only if its host is this one.
    uid = listener_uid(port) if _is_here(parts.hostname or "") else None
    if uid is None:
        return None

    name, owner = str(uid), None
    with suppress(KeyError):
        name = pwd.getpwuid(uid).pw_name
    with suppress(OSError):
        owner = Path(daemon.socket).stat().st_uid
    uids, _ = known_uids(daemon.allowed_users)
    return ManagerUser(name=name, allowed=uid in uids or uid == owner)


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
    """Return whether *host* is this host: only its own addresses can be bound to."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, _, _, _, place in addresses:
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as own:
            own.bind(place)
            return True
    return False
