"""What the cluster's GPUs and shares look like now, and what gpusaged says of itself, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpusage_hooks.types import Cluster
from gpusage_yarn.cluster import View


def describe(view: View, cluster: Cluster, status: Mapping[str, Any] | None, trouble: str) -> str:
    """Return a few lines of text."""
    return "\n".join([*_cluster(view, cluster), *_daemon(status, trouble)])


def _cluster(view: View, cluster: Cluster) -> Iterator[str]:
    yield f"YARN {cluster.version}: {len(view.nodes)} nodes, queues {', '.join(queue.path for queue in view.queues)}"
    for pool in cluster.pools:
        free = f"{pool.free_gpu_count} of {pool.gpu_count} GPUs free"
        room = _room(view, pool.site_type) if pool.mps_per_gpu else "not shared"
        yield f"  {pool.site_type} ({pool.gpu or 'not in the catalogue'}): {free}, {room}"
    yield from (f"  {note}" for note in cluster.notes)


def _room(view: View, label: str) -> str:
    """Return the largest share that has room; where no node tells of each of its GPUs, that is a guess by their sum."""
    is_exact = all(node.largest is not None for node in view.of_label(label) if node.usable and node.total.share)
    return f"room for a share of {view.room(label)}{'' if is_exact else ' at most, by sums over GPUs'}"


def _daemon(status: Mapping[str, Any] | None, trouble: str) -> Iterator[str]:
    if status is None:
        yield f"gpusaged: {trouble}"
        return
    switch = status.get("kill_switch", {})
    yield f"gpusaged {status.get('version')}, up {status.get('uptime_s')} s, mode {status.get('mode')}"
    yield f"kill switch: {'ON' if switch.get('on') else 'off'} ({switch.get('path')})"
    trouble = status.get("configuration", {}).get("error")
    if trouble:
        yield f"configuration: not usable, the last good one is in force: {trouble}"
    yield "asked: " + ", ".join(f"{name} {count}" for name, count in status.get("asks", {}).items())
