"""How much of its peak arithmetic rate a GPU can hold under its power limit; from the catalogue's figures alone."""

from __future__ import annotations

from gpusage_hooks.types import Gpu
from gpusage_hooks.units import TERA

WATTS_PER_TERAFLOP: dict[tuple[int, int], float] = {
    (3, 7): 34.32,
    (6, 0): 26.77,
    (6, 1): 20.43,
    (7, 0): 17.73,
    (7, 5): 17.92,
    (8, 0): 16.02,
    (8, 6): 9.83,
    (8, 9): 4.35,
    (9, 0): 10.46,
    (10, 0): 13.42,
    (12, 0): 5.24,
}
"""What a chip has for each TFLOP/s of its FP32 peak, by compute capability: the median over the catalogue's boards."""
SUSTAINED = 0.9
"""The rate that is held, as a power of the watts that are there over those of the median."""


def sustained_share(gpu: Gpu) -> float:
    """Return the share of its peak rate that *gpu* holds, 1 where its power limit is enough or its chip is not known.

    Chips of one generation need about the same power for the same arithmetic. A board that has half of what the others
    have runs its kernels below its clock: in the median of NeuSight's largest FP32 products (`linear`, the slowest
    30 %) T4 reaches 39 % of its peak, where A100 of 250 W reaches 78 %, V100 86 % and A100 of 300 W 90 %.
    """
    needed = WATTS_PER_TERAFLOP.get(gpu.compute_capability) if gpu.vendor == "nvidia" else None
    if needed is None:
        return 1.0
    watts = gpu.power_limit_w * TERA / gpu.peak_flop_per_s["fp32"]
    return float(min(1.0, watts / needed) ** SUSTAINED)
