"""One GPU's part of a job that several GPUs run: `divide` applies each kind of parallelism that the workload has.

Memory of Megatron's distributed optimizer is 6 + 12 / d bytes for each weight in bf16, 4 + 16 / d in fp16, and the
gradients are summed in place (Megatron Core's user guide, "Distributed Optimizer").
"""

from __future__ import annotations

from dataclasses import dataclass

from gpusage.devices.precisions import FLOAT_BYTES
from gpusage.predictors.parallel.context_parallel import RingTraffic, part_of_tokens, ring_traffic
from gpusage.predictors.parallel.data_parallel import (
    NO_GRADIENT_TRAFFIC,
    UNSHARDED,
    GradientTraffic,
    Sharding,
    gradient_traffic,
    is_replicated,
    sharding_of,
)
from gpusage.predictors.parallel.expert_parallel import ExpertTraffic, expert_traffic, part_of_experts
from gpusage.predictors.parallel.links import (
    EXCHANGE_S,
    allreduce_s_per_byte,
    bottleneck_link,
    exchange_s_per_byte,
    send_s_per_byte,
)
from gpusage.predictors.parallel.pipeline import idle_micro_batches
from gpusage.predictors.parallel.tensor_parallel import DividedLayers, divided_layers
from gpusage.predictors.work.lowering import Lowering
from gpusage.predictors.work.operators import element_count
from gpusage_hooks.types import Gpu, ModelGraph, Workload
from gpusage_hooks.units import seconds

NOTED_WAIT_SHARE = 0.05
"""A note names what is waited where it is at least this part of the step."""
NOT_MEASURED = (
    "No step on several GPUs was measured here: memory, and the wait of GPUs for each other, follow from arithmetic."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTraffic:
    """What the GPUs of one copy of a model send each other in a step.

    Attributes:
        sum_count: Sums over the GPUs that divide a layer, one after the other.
        sum_bytes: Of all of them.
        ring: Keys and values, and their gradients, of other parts of the sequences.
        experts: What goes to experts on other GPUs, and back.
        handover_bytes: What a stage sends to its neighbours.
    """

    sum_count: float
    sum_bytes: float
    ring: RingTraffic
    experts: ExpertTraffic
    handover_bytes: float


def copy_traffic(layers: DividedLayers, graph: ModelGraph, workload: Workload) -> CopyTraffic:
    """Return what the GPUs send that hold the stage *graph*, of which each computes its part of *layers*."""
    passes = 3 if workload.checkpointing else 2  # forward, again, backward

    # A stage hands on what its newest input holds, in parts if several GPUs have parts of it.
    handover_bytes = 0.0
    if workload.pipeline > 1:
        _, newest = graph.inputs[-1]
        read = element_count(newest, workload.batch_size)
        part = read / (workload.tensor * workload.context)
        # Activations, and gradients, of each piece.
        handover_bytes = 2.0 * FLOAT_BYTES[workload.precision] * part * workload.virtual_pipeline

    return CopyTraffic(
        sum_count=passes * layers.sum_count,
        sum_bytes=passes * layers.sum_bytes,
        ring=ring_traffic(graph, workload),
        experts=ExpertTraffic(*(passes * one for one in expert_traffic(graph, workload))),
        handover_bytes=handover_bytes,
    )


def wait_in_copy_s(traffic: CopyTraffic, passes_s: float, attention_s: float, workload: Workload, gpu: Gpu) -> float:
    """Return how long a GPU waits in a step for those that hold parts of its copy.

    With the bubble of the pipeline: (p - 1) / v steps for each m, of which this is the mean; more where m < p.

    Args:
        traffic: What they send each other.
        passes_s: What it computes forward and backward; the update is after the bubble.
        attention_s: Of that in attentions; keys and values travel meanwhile, but for the last block.
        workload: How many there are.
        gpu: Each of them.
    """
    network = workload.network_bytes_per_s

    sums_s = EXCHANGE_S * traffic.sum_count
    sums_s += traffic.sum_bytes * allreduce_s_per_byte(gpu, workload.tensor, network)

    # Keys and values of the next block travel while the attention to the one before is computed.
    sent_s_per_byte = send_s_per_byte(gpu, workload.tensor * workload.context, network, workload.tensor)
    ring_s = EXCHANGE_S * traffic.ring.hop_count + traffic.ring.sent_bytes * sent_s_per_byte
    ring_s = max(ring_s - attention_s * (1.0 - 1.0 / workload.context), 0.0)

    experts_s = EXCHANGE_S * traffic.experts.exchange_count
    experts_s += traffic.experts.sent_bytes * exchange_s_per_byte(gpu, workload.expert, network)

    # Stages stand as far apart as they have GPUs.
    distance = workload.gpus // workload.pipeline
    handover_s = traffic.handover_bytes * send_s_per_byte(gpu, workload.gpus, network, distance)

    # While the pipeline fills and drains, a stage waits as if it computed so many micro-batches more.
    bubble = idle_micro_batches(workload) / workload.accumulate
    return (passes_s + sums_s + ring_s + experts_s + handover_s) * (1.0 + bubble) - passes_s


NOTHING_SENT = CopyTraffic(
    sum_count=0.0, sum_bytes=0.0, ring=RingTraffic(0.0, 0.0), experts=ExpertTraffic(0.0, 0.0), handover_bytes=0.0
)
"""One GPU has the whole copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """What one of a workload's GPUs computes in training, and what it exchanges with the others.

    Attributes:
        workload: How many GPUs there are, and what they divide.
        lowering: The work of this GPU; where a language model generates, still that of all of them.
        copy_traffic: What GPUs that hold one copy of the model send each other in a step.
        gradients: What GPUs that train the same weights sum for one update.
        sharding: What each of these holds.
    """

    workload: Workload
    lowering: Lowering
    copy_traffic: CopyTraffic = NOTHING_SENT
    gradients: GradientTraffic = NO_GRADIENT_TRAFFIC
    sharding: Sharding = UNSHARDED

    @property
    def divides_copy(self) -> bool:
        """Return whether GPUs wait for those that hold other parts of their copy."""
        return max(self.workload.gpus_per_replica, self.workload.expert) > 1


def divide(graph: ModelGraph, lowering: Lowering, workload: Workload) -> Division:
    """Return what each of *workload*'s GPUs does of *lowering*, which is of *graph*.

    Raises:
        GraphError: The model has no such parts, or they cannot be divided evenly.
    """
    if workload.gpus == 1 or not is_replicated(workload):
        return Division(workload=workload, lowering=lowering)

    lowering = part_of_tokens(lowering, graph, workload)
    lowering = part_of_experts(lowering, graph, workload)
    layers = divided_layers(lowering, graph, workload)
    return Division(
        workload=workload,
        lowering=layers.lowering,
        copy_traffic=copy_traffic(layers, graph, workload),
        gradients=gradient_traffic(layers.lowering, workload),
        sharding=sharding_of(layers.lowering, workload),
    )


def several_gpu_notes(workload: Workload, gpu: Gpu, step_s: float, waits_s: float) -> tuple[str, ...]:
    """Return what the figures of several GPUs mean; nothing for one.

    Args:
        workload: How many there are, and what they do.
        gpu: Each of them.
        step_s: On all of them.
        waits_s: What each waits for the others, a part of that.
    """
    count, step = workload.gpus, f"A step of batch {workload.batch_size} on {gpu.name}"
    if count == 1:
        return ()

    if workload.replica_count < count:  # several GPUs hold one copy of the model
        copies = workload.replica_count
        trained = f"{copies} copies train by {workload.strategy}" if copies > 1 else "One copy trains"
        if workload.expert > 1:
            trained += f", with {workload.weight_copies // workload.expert} of each expert (expert {workload.expert})"
        note = (
            f"Memory is that of the fullest GPU; step time and samples per second are of the "
            f"{workload.gpus_per_replica} GPUs that compute a batch together (tensor {workload.tensor}, context "
            f"{workload.context}, pipeline {workload.pipeline}). {trained}."
        )
        return note, f"{step} waits {seconds(waits_s)} for other GPUs."

    if is_replicated(workload):
        exchanged = "gradients" if workload.expert == 1 else "experts, and for gradients"
        note = (
            f"All figures are per GPU, samples per second included; {count} GPUs train by {workload.strategy}. "
            "The step's interval includes the wait of GPUs for each other."
        )
    elif workload.strategy == "pipeline":
        exchanged = "what the GPU before it hands on"
        note = (
            f"Memory is that of each of {count} GPUs, which hold an equal part of the layers and compute one "
            "after the other; times and rates are of all, for one batch at a time."
        )
    else:
        exchanged = "sums over GPUs"
        note = f"Memory is that of each of {count} GPUs, which divide each layer; times and rates are of all."
    if waits_s < NOTED_WAIT_SHARE * step_s:
        return (note,)
    link = bottleneck_link(gpu, count, workload.network_bytes_per_s)
    return note, f"{step} waits {seconds(waits_s)} for {exchanged} on {link}."
