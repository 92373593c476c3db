"""What a job needs whose history is all that is known of it, and what shares cost it at most.

Nothing tells how its kernels grow on fewer SMs, so they are taken to grow as much as they can: a share with a quarter
of the SMs makes the GPU's own time four times as long. What the GPU waited for before absorbs that in part.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpusage.predictors.learned.intervals import exactly
from gpusage_hooks.types import Gpu, GpuNeed, Interval, Known, Price
from gpusage_hooks.units import WHOLE_PERCENT

SHARPNESS = 8.0
"""As in `gpusage.predictors.times.host`, which needs numpy: a step takes this norm of the GPU's time and the host's."""
OWN_STEP = exactly(1.0)
"""No step time is known: the job's own step is the unit."""


def need_of(known: Known, gpu: Gpu) -> GpuNeed | None:
    """Return what *known* tells of a job alone on *gpu*; ``None`` where it does not tell both figures."""
    if known.gpu_utilization is None or known.memory_bytes is None:
        return None
    utilization, memory_bytes = known.gpu_utilization.interval, known.memory_bytes.interval
    activity = Interval(value=utilization.value, low=0.0, high=utilization.high)
    return GpuNeed(
        gpu=gpu.name,
        step_time_s=OWN_STEP,
        memory_bytes=memory_bytes,
        gpu_utilization=utilization,
        sm_activity=activity,
        dram_activity=activity,
        throughput_samples_per_s=OWN_STEP,
        fits=memory_bytes.high <= gpu.memory_bytes,
        source="history",
    )


def prices_of(need: GpuNeed, percents: Sequence[int]) -> tuple[Price, ...]:
    """Return what shares of *percents* cost a job of *need* alone on the GPU."""
    utilization = need.gpu_utilization
    return tuple(
        Price(
            gpu=need.gpu,
            share_percent=percent,
            slowdown=Interval(
                value=slowdown(utilization.value, percent),
                low=slowdown(utilization.low, percent),
                high=slowdown(utilization.high, percent),
            ),
        )
        for percent in percents
    )


def slowdown(utilization: float, percent: int) -> float:
    """Return how many times as long a step takes on *percent* of the SMs, at most.

    Args:
        utilization: Alone on the whole GPU, 0 to 1.
        percent: 1 to 100.
    """
    busy = utilization * WHOLE_PERCENT / percent
    rest = 1.0 - utilization**SHARPNESS
    return float((busy**SHARPNESS + rest) ** (1 / SHARPNESS))
