"""The step time of a model that several GPUs train, each with a batch of its own: that of one GPU, known less well.

Boards without links of their own exchange gradients through their host's bus, which all of them share. What of that is
not behind the backward pass is waited for; nothing of it was fitted (``python bench/several_gpus.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpusage.predictors.work.division import GATHERING
from gpusage.predictors.work.kernels import PARAMETER_SHARE
from gpusage.predictors.work.lowering import FLOAT_BYTES, Lowering
from gpusage_hooks.types import Gpu, Interval, Workload
from gpusage_hooks.units import seconds

LEAST_RATIO = 0.86
"""Of a step on several GPUs over the predicted one: 5 % of Sia's runs are below."""
MOST_RATIO = 2.09
"""5 % of Sia's runs on one host are above ..."""
MOST_RATIO_OF_HOSTS = 3.5
"""... and of those on several hosts; `python bench/several_gpus.py` prints all three."""
BUS_BYTES_PER_S = dict.fromkeys(("kepler", "pascal", "volta", "turing"), 13e9)
"""What 16 lanes of PCI Express 3.0 carry one way, of 15.8 GB/s, after headers and pauses. Newer buses are faster, and
how GPUs share them was measured nowhere that we may read."""
LINKED = ("-sxm", "-nvl", "gh200")
"""Parts of the names of boards that have NVLink."""
CROSSINGS = 4.0
"""How often the bus carries each gradient for each GPU beside the first: a ring sends it around twice (reduced, then
handed out), and each time it goes up to the host and down again."""
HIDDEN_SHARE = 2.0 / 3.0
"""The part of a step that the backward pass is, behind which DDP's buckets travel."""
GPUS_OF_HOST = 8
"""More are on several hosts."""
GATHERING_TRAFFIC = 1.5
"""What ZeRO's stage 3 sends for each byte of the others: arXiv 1910.02054, section 7."""
NOT_MEASURED = (
    "A step on several GPUs was never measured here: memory is arithmetic, and what GPUs wait for each other."
)


class Gradients(NamedTuple):
    """Bytes that each GPU sends for one update of the weights.

    Attributes:
        early_bytes: While the backward pass goes on.
        late_bytes: At its end: of the weights that are read first, by rows, whose gradients come last.
    """

    early_bytes: float
    late_bytes: float


NO_GRADIENTS = Gradients(0.0, 0.0)


def gradients_of(lowering: Lowering, workload: Workload) -> Gradients:
    """Return what each GPU of *workload* sends."""
    rows = {node.parameters[0] for node in lowering.structure.kinds if node.op_type == "Gather" and node.parameters}
    late = min(float(sum(np.prod(shape) for shape in rows)), float(lowering.parameter_count))
    number_bytes = FLOAT_BYTES["fp32"] * PARAMETER_SHARE.get(workload.precision, 1.0)
    number_bytes *= _traffic(workload) * workload.trainable
    return Gradients(number_bytes * (lowering.parameter_count - late), number_bytes * late)


def waiting_s(gradients: Gradients, step_s: float, workload: Workload, gpu: Gpu) -> float:
    """Return how long a GPU waits for gradients in a step that takes *step_s* on one: 0 where nothing tells it.

    Of steps that accumulate, the last before an update sends and hides; the mean of all of them is returned.
    """
    is_on_bus = gpu.generation in BUS_BYTES_PER_S and not any(part in gpu.name for part in LINKED)
    if workload.gpus > GPUS_OF_HOST or not is_on_bus:
        return 0.0
    bytes_per_s = BUS_BYTES_PER_S[gpu.generation] / (CROSSINGS * (workload.gpus - 1))
    early_s, late_s = (each / bytes_per_s for each in gradients)
    return (max(early_s - HIDDEN_SHARE * step_s, 0.0) + late_s) / workload.accumulate


def of_replicas(step_time_s: Interval, workload: Workload, gpu: Gpu, gradients: Gradients) -> Interval:
    """Return the step time on all of *workload*'s GPUs, of the same kind as *gpu*, from that of one."""
    if workload.gpus == 1:
        return step_time_s
    waits_s = waiting_s(gradients, step_time_s.value, workload, gpu)
    return replace(
        step_time_s,
        value=step_time_s.value + waits_s,
        low=(step_time_s.low + waits_s) * LEAST_RATIO,
        high=(step_time_s.high + waits_s) * _most_ratio(workload),
    )


def _traffic(workload: Workload) -> float:
    return GATHERING_TRAFFIC if workload.strategy in GATHERING else 1.0


def _most_ratio(workload: Workload) -> float:
    ratio = MOST_RATIO if workload.gpus <= GPUS_OF_HOST else MOST_RATIO_OF_HOSTS
    return 1.0 + (ratio - 1.0) * _traffic(workload)


def replica_notes(workload: Workload, gpu: Gpu, waits_s: float) -> tuple[str, ...]:
    """Return what the figures of several GPUs mean.

    Args:
        workload: How many train, and how.
        gpu: Each of them.
        waits_s: `waiting_s`, of the point.
    """
    if workload.gpus == 1:
        return ()
    note = (
        f"All figures are per GPU, of {workload.gpus} that train by {workload.strategy}: samples per second as well. "
        f"Waiting for each other may make a step up to {_most_ratio(workload):.1f} times as long as the point."
    )
    if not waits_s:
        return (note,)
    waiting = (
        f"Of a step on {gpu.name}, {seconds(waits_s)} are for gradients that cross the host's bus: it has no NVLink."
    )
    return (note, waiting)
