"""What each precision means: the bytes of its numbers, and the arithmetic of its products."""

from __future__ import annotations

from typing import get_args

from gpusage_hooks.job_keys import QUANTISED
from gpusage_hooks.types import Gpu, Precision

AUTOCAST = ("fp16", "bf16", "fp8-mixed")
"""In training, and in inference as it was measured: weights have 4 bytes and are cast to 2."""
PURE: dict[str, Precision] = {"torch.float16": "fp16-pure", "torch.bfloat16": "bf16-pure"}
"""By PyTorch's name of what all weights are, where nothing casts them."""
HALF = (*AUTOCAST, *PURE.values(), *QUANTISED)
"""Whose products are of numbers of 2 bytes."""
FLOAT_BYTES: dict[Precision, int] = {precision: 2 if precision in HALF else 4 for precision in get_args(Precision)}
"""Of an activation."""
QUANTISED_BYTES: dict[Precision, float] = {
    **dict.fromkeys(QUANTISED, 1.0),
    "int4": 0.5 + 2.5 / 128,
    "nf4": 0.5 + 4.0 / 64,
}
"""Of a weight of a product: of ``int4``, 128 numbers share a scale of 2 bytes and a zero of 4 bits (GPTQ, AWQ); of
``nf4``, 64 share a scale of 4 bytes (bitsandbytes, without a second quantisation of the scales)."""
ARITHMETIC: dict[Precision, Precision] = {
    "fp16-pure": "fp16",
    "bf16-pure": "bf16",
    "fp8-mixed": "bf16",
    **dict.fromkeys(QUANTISED, "fp16"),
}
"""Of products, where it is not the job's own precision; quantised weights are widened first. Of ``fp8-mixed``, those
that are not of fp8."""

MATRIX_UNITS = (7, 0)
"""The first Nvidia chips with tensor cores, and the first to issue integers and floats side by side: Volta."""
FP8_UNITS = (8, 9)
"""The first Nvidia chips whose tensor cores multiply numbers of fp8: Ada and Hopper."""
INT8_UNITS = (7, 5)
"""The same of int8: Turing."""
NARROW_SPEEDUP = 2.0
"""Of tensor cores on numbers of 1 byte, over those of 2."""


def has_matrix_units(gpu: Gpu) -> bool:
    """Return whether *gpu* has units for products of matrices; its integers do not wait for its floats then, either."""
    return gpu.compute_capability >= MATRIX_UNITS


def has_narrow_units(gpu: Gpu, precision: Precision) -> bool:
    """Return whether tensor cores of *gpu* multiply numbers of 1 byte in *precision*, at twice the rate of fp16.

    Source: NVIDIA's data sheets of T4 (65 and 130), A100 (312 and 624), L40S (362 and 733) and H100 (989 and 1,979
    TFLOP/s or TOP/s, dense).
    """
    first = {"fp8": FP8_UNITS, "fp8-mixed": FP8_UNITS, "int8": INT8_UNITS, "w8a8": INT8_UNITS}.get(precision)
    return first is not None and gpu.vendor == "nvidia" and gpu.compute_capability >= first


def parameter_share(precision: Precision) -> float:
    """Return what a weight, its gradient and its state take in training, against 4 bytes each.

    Beside quantised weights the trained ones have 2 bytes.
    """
    return 0.5 if precision in PURE.values() or precision in QUANTISED_BYTES else 1.0


def missing_units(gpu: Gpu, precision: Precision) -> Precision | None:
    """Return the precision in which *gpu* must compute without units for it; ``None`` where it has units."""
    computed = ARITHMETIC.get(precision, precision)
    return None if computed in gpu.peak_flop_per_s else computed
