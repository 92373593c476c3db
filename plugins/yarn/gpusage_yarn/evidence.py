"""What a host and its cluster tell about an installation: gathered once, so that every check is a pure function of it.

Invariants:

1. Gathering never fails: what cannot be had is ``None``, or a text that says why.
2. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpusage.api import advisor
from gpusage.cli.doctor import OwnEvidence, gather_own
from gpusage.configuration import Configuration
from gpusage.configuration_file import read_configuration
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import Cluster
from gpusage_yarn.address import SOCKET, require_addresses, sockets
from gpusage_yarn.cluster import View, cluster_of, read_view
from gpusage_yarn.hadoop_xml import SITE, conf_folder, read_settings
from gpusage_yarn.install import CALCULATOR, CLASSES, LISTENERS, PROCESSORS, RULES, SAMPLER, SCHEDULER
from gpusage_yarn.jmx import MOST_NODES, NODES_LIMIT_S, JmxReport, ask_daemon, ask_nodes
from gpusage_yarn.manager_user import ManagerUser, manager_user
from gpusage_yarn.preflight import configured_classes, load_classes
from gpusage_yarn.rest import ResourceManager
from gpusage_yarn.settings import YarnSettings

SETTINGS = (
    RULES,
    PROCESSORS,
    "yarn.resourcemanager.scheduler.class",
    "yarn.node-labels.enabled",
    "yarn.resourcemanager.recovery.enabled",
    "yarn.scheduler.minimum-allocation-mb",
    SOCKET,
    "gpusage.switch-file",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the checks read.

    Attributes:
        own: Of gpusage itself.
        view: ``None`` where no ResourceManager answers, and *trouble* says why.
        settings: Of the ResourceManager's, those that it tells.
        user: The ResourceManager's, where it runs on this host.
        nodes: NodeManagers that offer shares, as far as they were asked.
        loaded: For each of our classes that is configured here, why it cannot be made, or ``""``; ``None`` where
            that could not be tried, and *loading_trouble* says why.
        sampler: What samples containers on this host; ``None`` where it is no node of ours.
    """

    folder: Path
    own: OwnEvidence
    view: View | None = None
    cluster: Cluster | None = None
    trouble: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    manager: JmxReport | None = None
    user: ManagerUser | None = None
    nodes: tuple[JmxReport, ...] = ()
    loaded: Mapping[str, str] | None = None
    loading_trouble: str = ""
    sampler: str | None = None


def gather(folder: Path | None = None, addresses: tuple[str, ...] = ()) -> Evidence:
    """Return all evidence that this host and its cluster give."""
    configuration, trouble = read_configuration()
    chosen = conf_folder(folder or configuration.of_manager(YarnSettings).conf_dir)
    loaded, loading_trouble = _loaded(chosen)
    cluster = _of_cluster(chosen, configuration, addresses)
    asked = cluster.get("settings", {}).get(SOCKET)
    return Evidence(
        folder=chosen,
        own=gather_own(configuration, trouble, sockets(None if trouble else configuration, asked)),
        loaded=loaded,
        loading_trouble=loading_trouble,
        sampler=sampler_of(chosen),
        **cluster,
    )


def _of_cluster(folder: Path, configuration: Configuration, addresses: tuple[str, ...]) -> dict[str, Any]:
    """Return what the ResourceManager and its nodes say, by the names of `Evidence`."""
    settings = configuration.of_manager(YarnSettings)
    try:
        manager = ResourceManager(require_addresses(settings, addresses), patience_s=0)
        view = read_view(lambda path: manager.look("GET", path), settings.share_resource)
        # Of the scheduler's own file the ResourceManager tells nothing; on its host it lies here.
        calculator = read_settings(folder / SCHEDULER).get(CALCULATOR)
        values = {CALCULATOR: calculator, **{name: manager.settings(name) for name in SETTINGS}}
    except GpuUsageError as error:
        return {"trouble": str(error)}
    sharing = [node for node in view.nodes if node.usable and node.total.share][:MOST_NODES]
    answers = ask_nodes(sharing, manager.address.partition(":")[0], NODES_LIMIT_S)
    nodes = tuple(answers.get(node.name, JmxReport(name=node.name, trouble="no answer in time")) for node in sharing)
    return {
        "view": view,
        "cluster": cluster_of(view, advisor().catalogue),
        "settings": {name: value for name, value in values.items() if value is not None},
        "manager": ask_daemon("ResourceManager", manager.address),
        "user": manager_user(manager.address, configuration.daemon),
        "nodes": nodes,
    }


def sampler_of(folder: Path) -> str | None:
    """Return the command that samples containers by the configuration in *folder*; ``None`` where it is of no node."""
    try:
        settings = read_settings(folder / SITE)
    except GpuUsageError:
        return None
    is_node = CLASSES[LISTENERS] in settings.get(LISTENERS, "")
    return settings.get(SAMPLER, "") if is_node else None


def _loaded(folder: Path) -> tuple[Mapping[str, str] | None, str]:
    try:
        return load_classes(configured_classes(folder), folder), ""
    except GpuUsageError as error:
        return None, str(error)
