"""What a share is billed at: by which weight of `GRES/mps` it costs its part of a GPU, in each partition."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpusage_hooks.types import GpuPool
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.weights import weights_of

_GPU = re.compile(r"gres/gpu(:.+)?", re.IGNORECASE)
_MPS = "gres/mps"
_TOLERANCE = 0.01


def wrong_weights(partitions: Sequence[scontrol.Line], pools: Sequence[GpuPool]) -> Iterator[str]:
    """Yield what to set where a partition bills GPUs, and a share is not billed as its part of one.

    A GPU of several types is billed by its dearest weight, for a share names no type.

    Args:
        partitions: As `scontrol show partitions` describes them.
        pools: The cluster's.
    """
    for partition in partitions:
        weights = weights_of(partition)
        gpu = max((value for name, value in weights.items() if _GPU.fullmatch(name)), default=0.0)
        name = partition["PartitionName"]
        units = {pool.mps_per_gpu for pool in pools if name in (pool.partitions or (name,)) and pool.mps_per_gpu}
        if not gpu or not units:
            continue
        wanted = gpu / min(units)
        if abs(weights.get(_MPS, 0.0) - wanted) > _TOLERANCE * wanted:
            yield f"GRES/mps={wanted:g} in partition {name}"
