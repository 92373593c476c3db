"""What a host and its cluster tell about an installation: gathered once, so that every check is a pure function of it.

Invariants:

1. Gathering never fails: what cannot be had is ``None``, or a text that says why.
2. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from gpusage.configuration import Configuration, load_configuration
from gpusage.service import client
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import Cluster
from gpusage_yarn.address import require_addresses
from gpusage_yarn.cluster import View, cluster_of, read_view
from gpusage_yarn.hadoop_xml import conf_folder, read_settings
from gpusage_yarn.install import CALCULATOR, PROCESSORS, RULES, SCHEDULER
from gpusage_yarn.manager_user import ManagerUser, manager_user
from gpusage_yarn.preflight import configured_classes, load_classes
from gpusage_yarn.rest import ResourceManager

SETTINGS = (
    RULES,
    PROCESSORS,
    "yarn.resourcemanager.scheduler.class",
    "yarn.node-labels.enabled",
    "yarn.resourcemanager.recovery.enabled",
    "gpusage.daemon.socket",
    "gpusage.switch-file",
)
MOST_NODES = 100
"""So many NodeManagers are asked, no more: a doctor is no load test."""
_BEAN = "/jmx?qry=org.gpusage:type=Metrics"
_TIMEOUT_S = (3.05, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """What one daemon says of our classes in it.

    Attributes:
        version: Our jar's; ``""`` where nothing of ours has started there.
        classes: Those that have.
    """

    name: str
    version: str = ""
    classes: frozenset[str] = frozenset()
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the checks read.

    Attributes:
        view: ``None`` where no ResourceManager answers, and *trouble* says why.
        settings: Of the ResourceManager's, those that it tells.
        user: The ResourceManager's, where it runs on this host.
        nodes: NodeManagers that offer shares, as far as they were asked.
        loaded: For each of our classes that is configured here, why it cannot be made, or ``""``; ``None`` where
            that could not be tried, and *loading_trouble* says why.
    """

    folder: Path
    configuration: Configuration
    configuration_trouble: str = ""
    view: View | None = None
    cluster: Cluster | None = None
    trouble: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    manager: Daemon | None = None
    user: ManagerUser | None = None
    nodes: tuple[Daemon, ...] = ()
    loaded: Mapping[str, str] | None = None
    loading_trouble: str = ""
    status: Mapping[str, Any] | None = None
    status_trouble: str = ""
    killed: bool = False


def gather(folder: Path | None = None, addresses: tuple[str, ...] = ()) -> Evidence:
    """Return all evidence that this host and its cluster give."""
    try:
        configuration, configuration_trouble = load_configuration(), ""
    except GpuUsageError as error:
        configuration, configuration_trouble = Configuration(), str(error)
    chosen = conf_folder(folder or configuration.yarn.conf_dir)
    loaded, loading_trouble = _loaded(chosen)
    status, status_trouble = _status(configuration)
    return Evidence(
        folder=chosen,
        configuration=configuration,
        configuration_trouble=configuration_trouble,
        loaded=loaded,
        loading_trouble=loading_trouble,
        status=status,
        status_trouble=status_trouble,
        killed=Path(configuration.kill_switch).exists(),
        **_of_cluster(chosen, configuration, addresses),
    )


def _of_cluster(folder: Path, configuration: Configuration, addresses: tuple[str, ...]) -> dict[str, Any]:
    """Return what the ResourceManager and its nodes say, by the names of `Evidence`."""
    from gpusage.api import advisor  # noqa: PLC0415 - loads the catalogue

    try:
        manager = ResourceManager(require_addresses(configuration, addresses), patience_s=0)
        view = read_view(lambda path: manager.look("GET", path), configuration.yarn.share_resource)
        # Of the scheduler's own file the ResourceManager tells nothing; on its host it lies here.
        calculator = read_settings(folder / SCHEDULER).get(CALCULATOR)
        told = {CALCULATOR: calculator, **{name: manager.settings(name) for name in SETTINGS}}
    except GpuUsageError as error:
        return {"trouble": str(error)}
    sharing = [node for node in view.nodes if node.usable and node.share][:MOST_NODES]
    with ThreadPoolExecutor(max_workers=8) as pool:
        nodes = tuple(pool.map(lambda node: ask_daemon(node.name, f"http://{node.address}"), sharing))
    return {
        "view": view,
        "cluster": cluster_of(view, advisor().catalogue),
        "settings": {name: value for name, value in told.items() if value is not None},
        "manager": ask_daemon("ResourceManager", manager.address),
        "user": manager_user(manager.address, configuration.daemon),
        "nodes": nodes,
    }


def ask_daemon(name: str, url: str) -> Daemon:
    """Return what the daemon at *url* says of our classes in it."""
    session = requests.Session()
    session.trust_env = False
    try:
        beans = session.get(url + _BEAN, timeout=_TIMEOUT_S).json()["beans"]
    except (requests.RequestException, ValueError, KeyError, TypeError) as error:
        return Daemon(name=name, trouble=type(error).__name__)
    if not beans:
        return Daemon(name=name)
    found = beans[0].get("Classes", "")
    classes = found.replace(",", " ").split() if isinstance(found, str) else map(str, found)
    return Daemon(name=name, version=str(beans[0].get("Version", "")), classes=frozenset(classes))


def _loaded(folder: Path) -> tuple[Mapping[str, str] | None, str]:
    try:
        return load_classes(configured_classes(folder), folder), ""
    except GpuUsageError as error:
        return None, str(error)


def _status(configuration: Configuration) -> tuple[Mapping[str, Any] | None, str]:
    try:
        return client.status(configuration.daemon.socket), ""
    except GpuUsageError as error:
        return None, str(error)
