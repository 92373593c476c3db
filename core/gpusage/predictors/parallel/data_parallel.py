"""Training on several GPUs: what each of them holds, what it exchanges, and how much longer a step takes.

**Sharding.** Mixed precision of ZeRO keeps weights and gradients in two bytes, and a copy of the weights in fp32 with
the optimizer's state, 2 + 2 + 12 bytes per weight with Adam; stage 1 shards the 12, stage 2 the gradients as well,
stage 3 everything. FSDP shards weights, gradients and state in fp32, and casts what it gathers. DDP shards nothing.

**Step.** Gradients travel behind a part of the step; what does not fit there is waited for. Measured steps
of Sia's jobs on 2 to 64 GPUs are 14 % off in the mean on one host, and 28 % on more than 8 GPUs.

Source:
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", arXiv 1910.02054,
    section 3; PyTorch's documentation of DistributedDataParallel (buckets) and FullyShardedDataParallel; DeepSpeed's
    of ``reduce_bucket_size`` and ``stage3_max_live_parameters``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpusage.devices.precisions import AUTOCAST, FLOAT_BYTES, parameter_share
from gpusage.predictors.parallel.expert_parallel import expert_share, own_share
from gpusage.predictors.parallel.links import allreduce_s_per_byte
from gpusage.predictors.work.checkpoints import checkpoints_of
from gpusage.predictors.work.lowering import Lowering, weight_memory_bytes
from gpusage_hooks.types import Gpu, Workload

FULLY_SHARDED = ("zero3", "fsdp")
"""Strategies that divide the weights, and gather a layer's when it runs."""
BUCKET_NUMBERS = 5e8
"""Gradients in the bucket of ZeRO's stages 1 and 2, by DeepSpeed's default."""
LIVE_NUMBERS = 1e9
"""Weights that stage 3 keeps gathered at most, by DeepSpeed's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """What one GPU holds: shares of what a GPU alone holds, and buffers.

    Attributes:
        weights: Of the weights in 4 bytes (2 in ``fp16-pure`` and ``bf16-pure``).
        copies: Of the weights' copies in half precision.
        persistent_copies: The part of *copies* that stays from step to step: ZeRO's; autocast makes them anew.
        gradients: Of the bytes of gradients.
        state: Of the optimizer's state, and of what the update computes.
        bucket_bytes: Where gradients are summed over GPUs.
        gathered_bytes: Layers whose weights and gradients are whole while they run.
        max_gathered_bytes: The most of that, where the framework keeps weights gathered.
    """

    weights: float = 1.0
    copies: float = 1.0
    persistent_copies: float = 0.0
    gradients: float = 1.0
    state: float = 1.0
    bucket_bytes: float = 0.0
    gathered_bytes: float = 0.0
    max_gathered_bytes: float = 0.0


UNSHARDED = Sharding()
"""One GPU."""


def is_replicated(workload: Workload) -> bool:
    """Return whether several GPUs train together; in decoding each has a part of every layer (`tensor_parallel`)."""
    return workload.gpus > 1 and workload.mode == "train"


def sharding_of(lowering: Lowering, workload: Workload) -> Sharding:
    """Return what each GPU of *workload* holds."""
    if not is_replicated(workload) or (workload.strategy == "ddp" and workload.weight_copies == 1):
        return UNSHARDED
    if workload.strategy in FULLY_SHARDED:
        return _fully_sharded(lowering, workload)
    trained = lowering.parameter_count * workload.trainable
    if workload.strategy == "ddp":
        return Sharding(bucket_bytes=trained * FLOAT_BYTES["fp32"] * parameter_share(workload.precision))

    # ZeRO's stages 1 and 2, or Megatron's distributed optimizer, which sums gradients in place.
    part, is_half = own_share(lowering, workload), workload.precision in AUTOCAST
    gradients = 0.5 if is_half and not _sums_in_fp32(workload) else 1.0
    if is_megatron(workload) and workload.precision == "fp16":
        gradients += part  # those of its own weights in 4 bytes as well
    return Sharding(
        weights=part if is_half else 1.0,
        persistent_copies=1.0,
        gradients=gradients * part if workload.strategy == "zero2" else gradients,
        state=part,
        bucket_bytes=0.0 if is_megatron(workload) else min(trained, BUCKET_NUMBERS) * FLOAT_BYTES[workload.precision],
    )


def _fully_sharded(lowering: Lowering, workload: Workload) -> Sharding:
    part, weight_bytes = own_share(lowering, workload), _stored_bytes(lowering, workload)
    weights, gradients = _gathered_counts(lowering)
    gathered = weight_bytes * weights + FLOAT_BYTES[workload.precision] * gradients * workload.trainable

    # DeepSpeed keeps weights gathered up to a limit, and copies in fp32 with the state; FSDP casts what it gathers.
    live = weight_bytes * min(float(lowering.parameter_count), LIVE_NUMBERS)
    is_zero = workload.strategy == "zero3"
    return Sharding(
        weights=part,
        copies=part if is_zero else 0.0,
        persistent_copies=part if is_zero else 0.0,
        gradients=0.5 * part if is_zero and workload.precision in AUTOCAST else part,
        state=part,
        gathered_bytes=gathered,
        max_gathered_bytes=max(gathered, live) if is_zero else gathered,
    )


def _stored_bytes(lowering: Lowering, workload: Workload) -> float:
    """Return the bytes of a weight while it is gathered, the mean of all; quantised ones are gathered as they are."""
    return weight_memory_bytes(lowering, workload.precision) / max(float(lowering.parameter_count), 1.0)


def _gathered_counts(lowering: Lowering) -> tuple[float, float]:
    """Return how many weights are gathered at once, and how many gradients are whole.

    A repeated block is a unit, and the next one is gathered while it runs; what is outside of blocks is a unit that
    stays. A model without repeated blocks is one unit.
    """
    blocks, kinds = checkpoints_of(lowering), lowering.structure.kind_of_node
    count = float(lowering.parameter_count)
    read = lowering.parameter_bytes[kinds]
    if not blocks.has_blocks or not read.sum():
        return count, count

    numbers = read * (count / read.sum())
    outside = float(numbers[~blocks.recomputed_nodes].sum())
    block = float(np.bincount(blocks.start[blocks.recomputed_nodes], weights=numbers[blocks.recomputed_nodes]).max())
    return min(outside + 2 * block, count), min(outside + block, count)


HIDDEN_SHARE = 1.0 / 3.0
"""The part of a step behind which gradients travel: half of the backward pass, which is two thirds. A bucket is sent
when the last of its gradients is there, and sending slows the pass. Chosen with the next, as the bench has it."""
LAST_BYTES = 12.5 * 2**20
"""What no part of the step hides: DDP's last bucket, of 25 MiB at most, which is half full in the mean."""
SENDS_EACH_STEP = ("zero2", *FULLY_SHARDED)
"""Strategies whose GPUs keep a part of the gradients, to which each backward pass sends, accumulating or not."""
FULLY_SHARDED_TRAFFIC = 1.5
"""How long ZeRO's stage 3 sends for a second of the others (arXiv 1910.02054, section 7): in the forward pass, too."""


class GradientTraffic(NamedTuple):
    """Bytes that are summed over the GPUs with the same weights, and gathered, for one update of the weights.

    Attributes:
        early_bytes: While the backward pass goes on.
        late_bytes: At its end: of the weights that are read first, by rows, whose gradients come last; or of the last
            bucket.
        expert_bytes: As the early ones, but summed over those GPUs alone that have the same experts.
    """

    early_bytes: float
    late_bytes: float
    expert_bytes: float = 0.0


NO_GRADIENT_TRAFFIC = GradientTraffic(0.0, 0.0)


def gradient_traffic(lowering: Lowering, workload: Workload) -> GradientTraffic:
    """Return what the GPUs of *workload* send."""
    # While layers are gathered each weight is sent, frozen ones too: half of an all-reduce in each pass.
    number_bytes = _summed_bytes(workload) * workload.trainable
    if workload.strategy in FULLY_SHARDED:
        number_bytes += _stored_bytes(lowering, workload)
    all_bytes = number_bytes * lowering.parameter_count

    # Tables of rows are read first, so their gradients come last, when no pass is left to hide them.
    rows = {node.parameters[0] for node in lowering.structure.kinds if node.op_type == "Gather" and node.parameters}
    row_bytes = number_bytes * float(sum(np.prod(shape) for shape in rows)) / workload.tensor
    late_bytes = min(max(row_bytes, LAST_BYTES), all_bytes)
    early_bytes = all_bytes - late_bytes
    expert_bytes = min(all_bytes * expert_share(lowering, workload), early_bytes)
    return GradientTraffic(early_bytes - expert_bytes, late_bytes, expert_bytes)


def _summed_bytes(workload: Workload) -> float:
    """Return what each trained weight sends while gradients are summed, as bytes of an all-reduce.

    DeepSpeed sums gradients of two bytes in mixed precision, the others of four. Megatron's optimizer sums those of
    bf16 in four, and hands out new weights of two instead of the sums. Where a GPU keeps its part of the sums alone,
    they are handed out to nobody: half of it.
    """
    whole = FLOAT_BYTES["fp32"] * parameter_share(workload.precision)
    if workload.precision in AUTOCAST and workload.strategy.startswith("zero"):
        narrow = float(FLOAT_BYTES[workload.precision])
        whole = (whole + narrow) / 2.0 if _sums_in_fp32(workload) else narrow
    return 0.5 * whole if workload.strategy in FULLY_SHARDED else whole


def _sums_in_fp32(workload: Workload) -> bool:
    """Return whether ZeRO's gradients have 4 bytes in mixed precision: those of bf16 in Megatron's optimizer."""
    return workload.precision in ("bf16", "fp8-mixed") and is_megatron(workload)


def is_megatron(workload: Workload) -> bool:
    """Return whether GPUs divide more than samples and state, so that ZeRO is Megatron's distributed optimizer."""
    is_divided = max(workload.gpus_per_replica, workload.expert) > 1
    return is_divided and workload.strategy not in FULLY_SHARDED


def waiting_s(gradients: GradientTraffic, step_s: float, workload: Workload, gpu: Gpu) -> float:
    """Return how long a GPU waits for others in a step that takes *step_s* on one.

    Of steps that accumulate, the mean is returned: with some strategies only the last before an update sends and hides.
    """
    if not is_replicated(workload):
        return 0.0

    network, tensor = workload.network_bytes_per_s, workload.tensor
    byte_s = allreduce_s_per_byte(gpu, workload.weight_copies, network, tensor)

    # Gradients of experts are summed over those GPUs alone that have the same experts.
    alike = workload.weight_copies // workload.expert
    early_s = byte_s * gradients.early_bytes
    early_s += gradients.expert_bytes * allreduce_s_per_byte(gpu, alike, network, tensor * workload.expert)

    traffic = FULLY_SHARDED_TRAFFIC if workload.strategy in FULLY_SHARDED else 1.0
    hidden_s = HIDDEN_SHARE * traffic * step_s
    waits_s = max(early_s - hidden_s, 0.0) + byte_s * gradients.late_bytes
    return waits_s if workload.strategy in SENDS_EACH_STEP else waits_s / workload.accumulate
