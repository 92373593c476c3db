"""Whether this site's slurmctld takes `--prefer` for a preference.

Tried on 22.05, 24.11 and 26.05: without `ignore_prefer_validation` in SchedulerParameters, slurmctld refuses a job
whose preference none of its nodes could ever meet ("Requested node configuration is not available"): the node is in
another partition, has too little memory or too few CPUs, is excluded, or lacks another resource that the job asks for.
A job must never be refused because of us, so there we prefer nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpusage_hooks.types import Cluster

SETTING = "ignore_prefer_validation"
_NOTE = f"no GPU generation is preferred, because SchedulerParameters lacks {SETTING}"


def is_soft(settings: Mapping[str, str]) -> bool:
    """Tell whether a preference that no node can meet is passed over, by slurmctld's *settings*."""
    words = settings.get("schedulerparameters", "").lower().replace(" ", ",").split(",")
    return any(word.partition("=")[0] == SETTING for word in words)


def without_demands(cluster: Cluster, settings: Mapping[str, str]) -> Cluster:
    """Return *cluster*, its features left out where preferring one could become a demand."""
    if is_soft(settings):
        return cluster
    pools = tuple(replace(pool, feature=None) for pool in cluster.pools)
    return replace(cluster, pools=pools, notes=(*cluster.notes, _NOTE))
