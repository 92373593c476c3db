"""How fast a compiled model's kernels are: what a compiler changes beside fusing operators.

`gpusage.predictors.work.fusion` says which kernels are left. PyTorch's compiler also chooses layouts of memory and
writes the fused kernels itself. Its host starts fewer kernels, each as slowly as before: no public run tells how fast
it is, for all keep their GPU busy. ``python bench/compiled.py`` fits the factors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import hypot
from typing import NamedTuple

import numpy as np

from gpusage.predictors.learned.arrays import FloatArray
from gpusage.predictors.times.efficiency import Efficiency
from gpusage.predictors.times.residual import NO_RESIDUAL
from gpusage.predictors.work.operators import OperatorClass

_C = OperatorClass
GROUPS = (
    (_C.CONVOLUTION,),
    (_C.GROUPED_CONVOLUTION, _C.PRODUCT, _C.BATCHED_PRODUCT, _C.ATTENTION, _C.RECURRENT),
    (_C.BATCH_NORMALIZATION, _C.NORMALIZATION, _C.REDUCTION, _C.ELEMENTWISE, _C.GATHER),
    (_C.COPY,),
)
"""Classes that share a factor: convolutions, other products, what is fused, copies and casts."""


class Compiler(NamedTuple):
    """What a compiler changes.

    Attributes:
        factors: Of the time of each of `GROUPS`, of kernels that are fused already; what a kernel takes however small
            it is stays.
        deviation: How far 90 % of the truths lie from the point, on the logarithmic scale, where the eager model is
            known well.
    """

    factors: tuple[float, float, float, float]
    deviation: float


INDUCTOR = Compiler(factors=(0.79, 1.1, 0.44, 0.38), deviation=0.35)
"""PyTorch's, of the releases 2.4 and 2.9: medians of five fits, each without a fifth of the families of timm."""


@lru_cache(maxsize=4)
def compiled(efficiency: Efficiency, compiler: Compiler = INDUCTOR) -> Efficiency:
    """Return *efficiency* as *compiler* changes it; what was learned from whole eager steps is left out."""
    deviations = efficiency.deviations
    return replace(
        efficiency,
        second_bias=efficiency.second_bias - np.log(class_factors(compiler))[:, np.newaxis],
        deviations=replace(deviations, known=hypot(deviations.known, compiler.deviation)),
        residual=NO_RESIDUAL,
    )


def class_factors(compiler: Compiler) -> FloatArray:
    """Return the factor of each class, 1 for those of no group."""
    factors = np.ones(len(OperatorClass))
    for group, factor in zip(GROUPS, compiler.factors, strict=True):
        factors[list(group)] = factor
    return factors
