"""The cluster, and applications that ended, as the ResourceManager sees them."""

from __future__ import annotations

from dataclasses import replace

from gpusage_hooks.managers import Context
from gpusage_hooks.types import Cluster, MarkedJob, Usage
from gpusage_yarn import applications
from gpusage_yarn.cluster import cluster_of, parse_node, read_view
from gpusage_yarn.documents import Document, as_list
from gpusage_yarn.jmx import NODES_LIMIT_S, ask_nodes, neighbours_of
from gpusage_yarn.rest import ResourceManager
from gpusage_yarn.settings import YarnSettings
from gpusage_yarn.usage import collecting


def observe_cluster(addresses: tuple[str, ...], context: Context) -> Cluster:
    """Ask the ResourceManager at one of *addresses* for its nodes.

    Raises:
        SilentError: It does not answer.
        RequestError: It refuses.
    """
    manager = ResourceManager(addresses)
    share_resource = context.settings_of(YarnSettings).share_resource
    view = read_view(lambda path: manager.look("GET", path), share_resource)
    return cluster_of(replace(view, neighbours=neighbours_of(view, manager.address)), context.catalogue)


def find_jobs(addresses: tuple[str, ...], job_id: str, user: str) -> tuple[MarkedJob, ...] | None:
    """Ask the ResourceManager at one of *addresses* for applications; ``None`` where *job_id* is of another form.

    Raises:
        SilentError: It does not answer.
        RequestError: It refuses.
    """
    if job_id and not applications.APPLICATION.fullmatch(job_id):
        return None
    manager = ResourceManager(addresses)
    return applications.find_jobs(lambda path: manager.look("GET", path), job_id, user)


def collect_usage(addresses: tuple[str, ...], context: Context) -> tuple[Usage, ...]:
    """Ask every node that offers shares for its letter, and the ResourceManager at one of *addresses* for the rest.

    Raises:
        SilentError: It does not answer.
        RequestError: It refuses.
    """
    manager = ResourceManager(addresses)

    def get(path: str) -> Document:
        return manager.look("GET", path)

    share = context.settings_of(YarnSettings).share_resource
    nodes = [parse_node(node, share) for node in as_list(get("nodes"), "nodes", "node")]
    sharing = [node for node in nodes if node.usable and node.total.share]
    reports = ask_nodes(sharing, manager.address.partition(":")[0], NODES_LIMIT_S)
    return collecting.collect_usage(get, [report.letter for report in reports.values()], context.catalogue)
