"""The precision in which a GPU computes a job's products, and whether it has units for that."""

from __future__ import annotations

from gpusage_hooks.types import Gpu, Precision

ARITHMETIC: dict[Precision, Precision] = {
    "fp16-pure": "fp16",
    "bf16-pure": "bf16",
    "int8": "fp16",
    "int4": "fp16",
}
"""Of products, where it is not the job's own precision; quantised weights are widened first."""


def missing_units(gpu: Gpu, precision: Precision) -> Precision | None:
    """Return the precision in which *gpu* must compute without units for it; ``None`` where it has units."""
    computed = ARITHMETIC.get(precision, precision)
    return None if computed in gpu.peak_flop_per_s else computed
