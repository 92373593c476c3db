"""What partitions bill: the weights of GPUs and of shares in TRESBillingWeights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpusage_hooks.types import Cluster, GpuPool
from gpusage_slurm.scontrol import Line

GPU, SHARES = "gres/gpu", "gres/mps"
# A weight with a unit, 0.25G, is of memory.
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?")
# Admins round weights.
_TOLERANCE = 0.01


def is_gpu_resource(name: str) -> bool:
    """Return whether *name* is that of GPUs, ``gres/gpu`` or ``gres/gpu:a100``; ``gres/gpumem`` is not."""
    return name.partition(":")[0] == GPU


def billing_weights(partition: Line) -> Mapping[str, float]:
    """Return the weights in ``CPU=1.0,Mem=0.25G,GRES/gpu=100`` that are plain numbers, by their names in lower case."""
    pairs = (word.partition("=") for word in partition.get("TRESBillingWeights", "").split(","))
    return {name.lower(): float(value) for name, _, value in pairs if _NUMBER.fullmatch(value)}


def shared_partitions(partitions: Iterable[Line], pools: Sequence[GpuPool]) -> Iterator[tuple[Line, int]]:
    """Yield each partition that has shares, with the least units of gres/mps that a GPU of it counts."""
    for partition in partitions:
        name = partition["PartitionName"]
        units = [pool.mps_per_gpu for pool in pools if name in (pool.partitions or (name,)) and pool.mps_per_gpu]
        if units:
            yield partition, min(units)


def gpu_weights(partition: Line) -> tuple[float, ...]:
    """Return the weights of GPUs in *partition*, of all types."""
    return tuple(weight for name, weight in billing_weights(partition).items() if is_gpu_resource(name) and weight)


def bills_others(partition: Line) -> bool:
    """Return whether *partition* bills anything but GPUs and shares, as CPUs or memory."""
    pairs = (word.lower().partition("=") for word in partition.get("TRESBillingWeights", "").split(",") if word)
    return any(value.strip("0.kmgtp") and not is_gpu_resource(name) and name != SHARES for name, _, value in pairs)


def bills_cpus(partition: Line) -> bool:
    """Return whether jobs without a GPU are billed in *partition*: without weights, Slurm bills CPUs."""
    return partition.get("TRESBillingWeights", "") in ("", "(null)") or bills_others(partition)


def with_billing_weights(cluster: Cluster, partitions: Sequence[Line]) -> Cluster:
    """Return *cluster* with the billing weight of a GPU of each pool, by its most expensive partition."""
    weights = {partition["PartitionName"]: billing_weights(partition) for partition in partitions}
    pools = []
    for pool in cluster.pools:
        there = [weights[name] for name in pool.partitions or weights if name in weights]

        # A weight of the type's own counts in place of the general one.
        typed = f"{GPU}:{pool.site_type.lower()}"
        weights_there = [each.get(typed, each.get(GPU)) for each in there]
        pools.append(replace(pool, billing_weight=max((each for each in weights_there if each), default=None)))
    return replace(cluster, pools=tuple(pools))


def wrong_weights(partitions: Sequence[Line], pools: Sequence[GpuPool], unbilled_gpu: float = 0.0) -> Iterator[str]:
    """Yield the weight to set for each partition that bills GPUs, but not shares in proportion.

    A GPU of several types is billed by its highest weight, for a share names no type.

    Args:
        partitions: As `scontrol show partitions` describes them.
        pools: The cluster's.
        unbilled_gpu: The weight that a GPU should have where it has none; 0 for none.
    """
    for partition, units in shared_partitions(partitions, pools):
        gpu, name = max(gpu_weights(partition), default=0.0), partition["PartitionName"]
        if not gpu and not unbilled_gpu:
            continue

        # A share is billed as its part of a GPU: a GPU's weight, divided by its units.
        wanted = (gpu or unbilled_gpu) / units
        if not gpu:
            yield f"GRES/gpu={unbilled_gpu:g},GRES/mps={wanted:g} in partition {name}"
        elif abs(billing_weights(partition).get(SHARES, 0.0) - wanted) > _TOLERANCE * wanted:
            yield f"GRES/mps={wanted:g} in partition {name}"
