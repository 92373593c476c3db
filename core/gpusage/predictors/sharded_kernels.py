"""What sharding changes in the kernels of a training step: the precision that a module runs in, and what is updated."""

from __future__ import annotations

from gpusage.devices.precisions import AUTOCAST
from gpusage_hooks.types import Workload


def is_autocast(workload: Workload) -> bool:
    """Tell whether weights of 4 bytes are cast for each product; ZeRO and FSDP run the whole module in two bytes."""
    is_sharded = workload.gpus > 1 and workload.strategy != "ddp"
    return workload.precision in AUTOCAST and workload.generate is None and not is_sharded


def update_share(workload: Workload) -> float:
    """Return the part of the weights that each GPU updates."""
    return 1.0 if workload.strategy == "ddp" else 1.0 / workload.gpus
