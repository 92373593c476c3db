"""What jobs on one GPU do to each other under MPS, from the sum of their activities.

Where the sums of SM activity and of DRAM activity stay below 1 the jobs fit beside each other and slow each other a
little; above 1 they share what there is. A job cannot use more SMs than its thread percentage lets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from gpusage_hooks import hookimpl
from gpusage_hooks.types import Colocation, Gpu, GpuNeed, Interval

INTERFERENCE = 0.25
"""Slowdown of a job for each unit of the others' DRAM activity, as much as it uses the memory itself."""
CONTENTION = 0.15
"""Slowdown of a job for each unit of the others' utilization: launches, caches and clocks are shared."""
RELATIVE_DEVIATION = 0.15
HEADROOM = 0.10
"""As the sharing rules' default: what a thread percentage grants beyond the predicted high end."""
WORTHWHILE_SUM = 1.05
"""Two jobs one after the other reach 1; sharing must gain at least this much to be recommended."""


@hookimpl(trylast=True)
def predict_colocation(needs: Sequence[GpuNeed], gpu: Gpu) -> Colocation:
    """Predict what jobs, each given by its need on *gpu*, do to each other under MPS."""
    percents = _thread_percents(needs)
    throughputs = tuple(_interval(value, alone=len(needs) == 1) for value in _throughputs(needs, percents))
    total = Interval(
        value=sum(interval.value for interval in throughputs),
        low=sum(interval.low for interval in throughputs),
        high=sum(interval.high for interval in throughputs),
    )
    fits = sum(need.memory_bytes.high for need in needs) <= gpu.memory_bytes
    return Colocation(
        gpu=gpu.name,
        normalised_throughput=throughputs,
        mps_thread_percent=percents,
        memory_cap_bytes=tuple(ceil(need.memory_bytes.high) for need in needs),
        throughput_sum=total,
        fits=fits,
        recommended=fits and len(needs) > 1 and total.low >= WORTHWHILE_SUM,
    )


def _thread_percents(needs: Sequence[GpuNeed]) -> tuple[int, ...]:
    """Return each job's thread percentage: what it uses and some headroom, cut down together where the sum is > 100."""
    wanted = [min(100.0, 100.0 * (need.sm_activity.high + HEADROOM)) for need in needs]
    cut = min(1.0, 100.0 / sum(wanted)) if wanted else 1.0
    return tuple(max(1, int(percent * cut)) for percent in wanted)


def _throughputs(needs: Sequence[GpuNeed], percents: Sequence[int]) -> list[float]:
    sm = np.array([need.sm_activity.value for need in needs])
    dram = np.array([need.dram_activity.value for need in needs])
    busy = np.array([need.gpu_utilization.value for need in needs])
    if len(needs) == 1:
        return [1.0]
    slowdown = 1.0 + INTERFERENCE * dram * (dram.sum() - dram) + CONTENTION * busy * (busy.sum() - busy)
    crowding = max(1.0, float(sm.sum()), float(dram.sum()))
    granted = np.minimum(1.0, np.array(percents) / 100.0 / np.maximum(sm, 1e-6))
    result: list[float] = np.minimum(granted, 1.0 / crowding / slowdown).tolist()
    return result


def _interval(value: float, *, alone: bool) -> Interval:
    if alone:
        return Interval(value=value, low=value, high=value)
    return Interval(value=value, low=value * (1 - 1.645 * RELATIVE_DEVIATION), high=min(1.0, value * 1.25))
