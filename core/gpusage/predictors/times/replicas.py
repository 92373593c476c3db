"""The step time of a model that several GPUs train, each with a batch of its own: that of one GPU, known less well.

What GPUs send each other for an update travels behind a part of the step, and is waited for beyond that
(`gpusage.predictors.times.links` has how fast). ``python bench/several_gpus.py`` compares it with measured steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpusage.precisions import FLOAT_BYTES, parameter_share
from gpusage.predictors.times.links import GPUS_OF_HOST, seconds_per_byte, way_of
from gpusage.predictors.work.division import GATHERING
from gpusage.predictors.work.lowering import Lowering
from gpusage_hooks.types import Gpu, Interval, Workload
from gpusage_hooks.units import seconds

LEAST_RATIO = 0.87
"""Of a step on several GPUs over the predicted one: 5 % of Sia's runs are below."""
MOST_RATIO = 2.15
"""5 % of Sia's runs on one host are above ..."""
MOST_RATIO_OF_HOSTS = 2.51
"""... and of those on more than 8 GPUs; `python bench/several_gpus.py` prints all three."""
HIDDEN_SHARE = 1.0 / 3.0
"""The part of a step behind which gradients travel: half of the backward pass, which is two thirds. A bucket is sent
when the last of its gradients is there, and sending slows the pass. Chosen with the next, as the bench has it."""
LAST_BYTES = 12.5 * 2**20
"""What no part of the step hides: DDP's last bucket, of 25 MiB at most, which is half full in the mean."""
SENDS_EACH_STEP = ("zero2", *GATHERING)
"""Strategies whose GPUs keep a part of the gradients, to which each backward pass sends, accumulating or not."""
GATHERING_TRAFFIC = 1.5
"""What ZeRO's stage 3 sends for each byte of the others (arXiv 1910.02054, section 7): the forward pass sends, too."""
SAID_SHARE = 0.05
"""A note names what is waited where it is at least this part of the step."""
NOT_MEASURED = (
    "A step on several GPUs was never measured here: memory is arithmetic, and what GPUs wait for each other."
)


class Gradients(NamedTuple):
    """Bytes that are summed over all GPUs, and gathered, for one update of the weights.

    Attributes:
        early_bytes: While the backward pass goes on.
        late_bytes: At its end: of the weights that are read first, by rows, whose gradients come last; or of the last
            bucket.
    """

    early_bytes: float
    late_bytes: float


NO_GRADIENTS = Gradients(0.0, 0.0)


def gradients_of(lowering: Lowering, workload: Workload) -> Gradients:
    """Return what the GPUs of *workload* send."""
    rows = {node.parameters[0] for node in lowering.structure.kinds if node.op_type == "Gather" and node.parameters}
    number_bytes = FLOAT_BYTES["fp32"] * parameter_share(workload.precision)
    number_bytes *= _traffic(workload) * workload.trainable
    all_bytes = number_bytes * lowering.parameter_count
    row_bytes = number_bytes * float(sum(np.prod(shape) for shape in rows))
    late_bytes = min(max(row_bytes, LAST_BYTES), all_bytes)
    return Gradients(all_bytes - late_bytes, late_bytes)


def waiting_s(gradients: Gradients, step_s: float, workload: Workload, gpu: Gpu) -> float:
    """Return how long a GPU waits for others in a step that takes *step_s* on one.

    Of steps that accumulate, the mean is returned: with some strategies only the last before an update sends and hides.
    """
    byte_s = seconds_per_byte(gpu, workload.gpus)
    hidden_s = HIDDEN_SHARE * _traffic(workload) * step_s
    waits_s = max(byte_s * gradients.early_bytes - hidden_s, 0.0) + byte_s * gradients.late_bytes
    return waits_s if workload.strategy in SENDS_EACH_STEP else waits_s / workload.accumulate


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


def replica_notes(workload: Workload, gpu: Gpu, step_s: float, waits_s: float) -> tuple[str, ...]:
    """Return what the figures of several GPUs mean.

    Args:
        workload: How many train, and how.
        gpu: Each of them.
        step_s: On all of them.
        waits_s: `waiting_s`, a part of that.
    """
    if workload.gpus == 1:
        return ()
    note = (
        f"All figures are per GPU, of {workload.gpus} that train by {workload.strategy}: samples per second as well. "
        "The interval of a step has what GPUs may wait for each other."
    )
    if waits_s < SAID_SHARE * step_s:
        return (note,)
    waiting = f"Of a step on {gpu.name}, {seconds(waits_s)} are for gradients on {way_of(gpu, workload.gpus)}."
    return (note, waiting)
