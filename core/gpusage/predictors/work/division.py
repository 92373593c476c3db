"""What each of several GPUs holds of a model in training: all of it, or its part by ZeRO's stages and FSDP.

Mixed precision of ZeRO keeps weights and gradients in two bytes, and a copy of the weights in fp32 with the optimizer's
state, 2 + 2 + 12 bytes per weight with Adam; stage 1 divides the 12, stage 2 the gradients as well, stage 3 everything.
FSDP divides weights, gradients and state in fp32, and casts what it gathers. DDP divides nothing.

Source:
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", arXiv 1910.02054,
    section 3; PyTorch's documentation of DistributedDataParallel (buckets) and FullyShardedDataParallel; DeepSpeed's
    of ``reduce_bucket_size`` and ``stage3_max_live_parameters``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpusage.precisions import AUTOCAST, FLOAT_BYTES, parameter_share
from gpusage.predictors.work.checkpoints import checkpoints_of
from gpusage.predictors.work.lowering import Lowering
from gpusage_hooks.types import Workload

GATHERING = ("zero3", "fsdp")
"""Strategies that divide the weights, and gather a layer's when it runs."""
BUCKET_NUMBERS = 5e8
"""Gradients in the bucket of ZeRO's stages 1 and 2, by DeepSpeed's default."""
LIVE_NUMBERS = 1e9
"""Weights that stage 3 keeps gathered at most, by DeepSpeed's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """What one GPU holds: shares of what a GPU alone holds, and buffers.

    Attributes:
        weights: Of the weights in 4 bytes (2 in ``fp16-pure`` and ``bf16-pure``).
        copies: Of the weights' copies in half precision.
        lasting_copies: The part of *copies* that stays from step to step: ZeRO's; autocast makes them anew.
        gradients: Of the bytes of gradients.
        state: Of the optimizer's state, and of what the update computes.
        bucket_bytes: Where gradients are summed over GPUs.
        gathered_bytes: Layers whose weights and gradients are whole while they run.
        most_gathered_bytes: The most of that, where the framework keeps weights gathered.
    """

    weights: float = 1.0
    copies: float = 1.0
    lasting_copies: float = 0.0
    gradients: float = 1.0
    state: float = 1.0
    bucket_bytes: float = 0.0
    gathered_bytes: float = 0.0
    most_gathered_bytes: float = 0.0

    @property
    def buffer_bytes(self) -> tuple[float, float, float, float]:
        """Return all buffers: the least, what is usual, the most, and the most again, as memory's four ends."""
        most = self.bucket_bytes + self.most_gathered_bytes
        return self.gathered_bytes, self.bucket_bytes + self.gathered_bytes, most, most


WHOLE = Division()
"""One GPU."""


def division_of(lowering: Lowering, workload: Workload) -> Division:
    """Return what each GPU of *workload* holds."""
    if workload.gpus == 1:
        return WHOLE
    if workload.strategy in GATHERING:
        return _gathering(lowering, workload)
    trained = lowering.parameter_count * workload.trainable
    if workload.strategy == "ddp":
        return Division(bucket_bytes=trained * FLOAT_BYTES["fp32"] * parameter_share(workload.precision))
    part, is_half = 1.0 / workload.gpus, workload.precision in AUTOCAST
    gradients = 0.5 if is_half else 1.0
    return Division(
        weights=part if is_half else 1.0,
        lasting_copies=1.0,
        gradients=gradients * part if workload.strategy == "zero2" else gradients,
        state=part,
        bucket_bytes=min(trained, BUCKET_NUMBERS) * FLOAT_BYTES[workload.precision],
    )


def _gathering(lowering: Lowering, workload: Workload) -> Division:
    part, number_bytes = 1.0 / workload.gpus, float(FLOAT_BYTES[workload.precision])
    weights, gradients = _gathered(lowering)
    gathered = number_bytes * (weights + gradients * workload.trainable)
    live = number_bytes * min(float(lowering.parameter_count), LIVE_NUMBERS)
    is_zero = workload.strategy == "zero3"
    return Division(
        weights=part,
        copies=part if is_zero else 0.0,
        lasting_copies=part if is_zero else 0.0,
        gradients=0.5 * part if is_zero and workload.precision in AUTOCAST else part,
        state=part,
        gathered_bytes=gathered,
        most_gathered_bytes=max(gathered, live) if is_zero else gathered,
    )


def _gathered(lowering: Lowering) -> tuple[float, float]:
    """Return how many weights are gathered at once, and how many gradients are whole.

    A repeated block is a unit, and the next one is gathered while it runs; what is outside of blocks is a unit that
    stays. A model without repeated blocks is one unit.
    """
    blocks, kinds = checkpoints_of(lowering), lowering.structure.kind_of_node
    count = float(lowering.parameter_count)
    read = lowering.parameter_bytes[kinds]
    if not blocks.is_found or not read.sum():
        return count, count
    numbers = read * (count / read.sum())
    outside = float(numbers[~blocks.twice].sum())
    block = float(np.bincount(blocks.start[blocks.twice], weights=numbers[blocks.twice]).max())
    return min(outside + 2 * block, count), min(outside + block, count)
