"""The cluster, and applications that ended, as the ResourceManager sees them."""

from __future__ import annotations

from gpusage_hooks.managers import Context
from gpusage_hooks.types import Cluster, Usage
from gpusage_yarn.cluster import cluster_of, read_view
from gpusage_yarn.misses import collect_misses
from gpusage_yarn.rest import ResourceManager
from gpusage_yarn.settings import YarnSettings


def observe_cluster(addresses: tuple[str, ...], context: Context) -> Cluster:
    """Ask the ResourceManager at one of *addresses* for its nodes.

    Raises:
        SilentError: It does not answer.
        RequestError: It refuses.
    """
    manager = ResourceManager(addresses)
    share_resource = context.settings_of(YarnSettings).share_resource
    return cluster_of(read_view(lambda path: manager.look("GET", path), share_resource), context.catalogue)


def collect_usage(addresses: tuple[str, ...]) -> tuple[Usage, ...]:
    """Ask the ResourceManager at one of *addresses* which applications had too little GPU memory.

    Raises:
        SilentError: It does not answer.
        RequestError: It refuses.
    """
    manager = ResourceManager(addresses)
    return collect_misses(lambda path: manager.look("GET", path))
