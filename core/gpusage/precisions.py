"""What each precision means: the bytes of its numbers, and the arithmetic of its products."""

from __future__ import annotations

from typing import get_args

from gpusage_hooks.types import Gpu, Precision

AUTOCAST = ("fp16", "bf16")
"""In training, and in inference as it was measured: weights have 4 bytes and are cast to 2."""
PURE: dict[str, Precision] = {"torch.float16": "fp16-pure", "torch.bfloat16": "bf16-pure"}
"""By PyTorch's name of what all weights are, where nothing casts them."""
HALF = (*AUTOCAST, *PURE.values(), "int8", "int4")
"""Whose products are of numbers of 2 bytes."""
FLOAT_BYTES: dict[Precision, int] = {precision: 2 if precision in HALF else 4 for precision in get_args(Precision)}
"""Of an activation."""
QUANTISED_BYTES = {"int8": 1.0, "int4": 0.5 + 2.5 / 128}
"""Of a weight of a product: in 4 bits, 128 numbers share a scale of 2 bytes and a zero of 4 bits (GPTQ, AWQ)."""
ARITHMETIC: dict[Precision, Precision] = {
    "fp16-pure": "fp16",
    "bf16-pure": "bf16",
    "int8": "fp16",
    "int4": "fp16",
}
"""Of products, where it is not the job's own precision; quantised weights are widened first."""


def parameter_share(precision: Precision) -> float:
    """Return what a weight, its gradient and its state take, against 4 bytes each."""
    return 0.5 if precision in PURE.values() else 1.0


def missing_units(gpu: Gpu, precision: Precision) -> Precision | None:
    """Return the precision in which *gpu* must compute without units for it; ``None`` where it has units."""
    computed = ARITHMETIC.get(precision, precision)
    return None if computed in gpu.peak_flop_per_s else computed
