"""What a site gives by default for each GPU, and a job loses whose GPU became a share.

Tried on 22.05: with DefCpuPerGPU=4 a job of one GPU gets 4 CPUs; rewritten to a share, which counts as no GPU, it gets
1. With DefMemPerGPU it gets the site's other default: too little ends it, all of the node's memory keeps others out. So
where a site has such defaults, nothing is shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpusage_hooks.types import Cluster

_WORDS = ("defcpupergpu", "defmempergpu")
_NOTE = "no GPU is shared, because a share would lose the site's defaults for each GPU ({})"


def defaults(settings: Mapping[str, str], partitions: str) -> tuple[str, ...]:
    """Return the defaults for each GPU in slurmctld's *settings* and in the text of `scontrol show partitions`."""
    text = f"{settings.get('jobdefaults', '')} {partitions}".replace(",", " ").replace("JobDefaults=", " ")
    return tuple(sorted({word for word in text.split() if word.lower().partition("=")[0] in _WORDS}))


def without_losses(cluster: Cluster, found: tuple[str, ...]) -> Cluster:
    """Return *cluster*, its GPUs not to be shared where a share would lose the defaults *found*."""
    if not found:
        return cluster
    pools = tuple(replace(pool, mps_per_gpu=None) for pool in cluster.pools)
    return replace(cluster, pools=pools, notes=(*cluster.notes, _NOTE.format(", ".join(found))))
