"""What a partition bills: the weights of ``TRESBillingWeights``, and that of one GPU of each pool."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpusage_hooks.types import Cluster, GpuPool
from gpusage_slurm import scontrol

_GPU = "gres/gpu"
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?")


def weights_of(partition: scontrol.Line) -> Mapping[str, float]:
    """Return the weights in ``CPU=1.0,Mem=0.25G,GRES/gpu=100`` that are plain numbers, by their names in lower case."""
    pairs = (word.partition("=") for word in partition.get("TRESBillingWeights", "").split(","))
    return {name.lower(): float(value) for name, _, value in pairs if _NUMBER.fullmatch(value)}


def with_weights(cluster: Cluster, partitions: Sequence[scontrol.Line]) -> Cluster:
    """Return *cluster* with what one GPU of each pool is billed, in the dearest of the partitions that reach it."""
    weights = {partition["PartitionName"]: weights_of(partition) for partition in partitions}
    return replace(cluster, pools=tuple(_with_weight(pool, weights) for pool in cluster.pools))


def _with_weight(pool: GpuPool, weights: Mapping[str, Mapping[str, float]]) -> GpuPool:
    there = [weights[name] for name in pool.partitions or weights if name in weights]
    typed = f"{_GPU}:{pool.site_type.lower()}"
    found = [each.get(typed, each.get(_GPU)) for each in there]
    return replace(pool, billing_weight=max((each for each in found if each), default=None))
