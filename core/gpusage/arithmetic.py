"""In which precision a GPU computes what a job's precision asks of it."""

from __future__ import annotations

from gpusage_hooks.types import Gpu, Precision

ARITHMETIC: dict[Precision, Precision] = {"bf16-pure": "bf16", "int8": "fp16", "int4": "fp16"}
"""In which products are computed, where that is not the precision's own name; quantised weights are widened first."""


def missing_units(gpu: Gpu, precision: Precision) -> Precision | None:
    """Return in which precision *gpu* would compute and has no units for; ``None`` where it has some."""
    computed = ARITHMETIC.get(precision, precision)
    return None if computed in gpu.peak_flop_per_s else computed
