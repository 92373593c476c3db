"""How much of a GPU's peak each class of operator reaches: the learned network, and what a compiler changes.

A kernel takes the 4-norm of two times, its arithmetic and its traffic, each at the GPU's peak over a learned
efficiency. The logarithms of both efficiencies come from a small network with one hidden layer, one for each class of
operator. Its inputs are the kernel's shape and what the catalogue says of the GPU, as ratios. `gpusage train` makes
the artifact ``step_time``.

PyTorch's compiler fuses operators (`gpusage.predictors.work.lowering.fused`), chooses memory layouts and writes
the fused kernels itself. Its host launches fewer kernels, each as slowly as before: no public run measures that, for
all keep their GPU busy. The factors were fitted on timm's compiled runs, 872 of 52 families on three GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import hypot
from typing import Any, NamedTuple

import numpy as np

from gpusage.predictors.arrays import FloatArray, IntArray, shaped
from gpusage.predictors.artifacts import StepTimeDeviations, StepTimeParameters
from gpusage.predictors.times.residual import NO_RESIDUAL, Residual, residual_of
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Engine


class KernelFeatures(NamedTuple):
    """What a network reads, shape (kernels, GPUs) each; lengths and ratios as logarithms.

    Attributes:
        inner: Length of the sums, as in `gpusage.predictors.work.lowering.Lowering`.
        width: As there.
        backward: 1 for a backward pass, else 0.
        half: 1 in fp16 and bf16, else 0.
        compute_us: Of the arithmetic at the GPU's peak.
        traffic_us: Of the traffic at the GPU's peak.
        waves: Thread blocks for each SM.
        traffic_per_l2: Bytes moved for each byte of the GPU's cache.
        matrix_path: 0 on the CUDA cores, 0.5 for TF32, 1 for half precision.
        before_volta: 1 where integers and floats share the CUDA cores' issue, else 0.
        ridge: Half the logarithm of the GPU's ridge point, around 0.
    """

    inner: FloatArray
    width: FloatArray
    backward: FloatArray
    half: FloatArray
    compute_us: FloatArray
    traffic_us: FloatArray
    waves: FloatArray
    traffic_per_l2: FloatArray
    matrix_path: FloatArray
    before_volta: FloatArray
    ridge: FloatArray


FEATURES = KernelFeatures._fields
HOST_TERMS = 4
"""What the host does: see `gpusage.predictors.times.kernels.Kernels.host_counts`."""
OVERLAP = 4.0
"""Host and GPU work side by side: a step takes this norm of the two times, near their maximum."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Efficiency:
    """What was learned.

    Attributes:
        first: Weights of the hidden layer, shape (classes, features, hidden).
        first_bias: Shape (classes, hidden).
        second: Weights of the output layer, shape (classes, hidden, 2): arithmetic, traffic.
        second_bias: Shape (classes, 2).
        latency_s: What a kernel takes on the GPU however small it is.
        host_s: Seconds of the host, in the order of `Kernels.host_counts`.
        gpu_log_factors: By GPU: how much longer than its figures say, as a logarithm; an unseen GPU has none.
        deviations: How far the truths lie from the point.
        residual: What whole steps take beyond the sum of their kernels.
        is_streaming: Whether kernels are held to what memory can do (`gpusage.predictors.times.kernel_times`).
        bounds_gradients: Whether convolutions' are held to what physics allows (`gpusage.predictors.times.gradients`).
        engine: What runs the kernels; all but ``eager`` have times of their own (`gpusage.predictors.times.engines`).
    """

    first: FloatArray
    first_bias: FloatArray
    second: FloatArray
    second_bias: FloatArray
    latency_s: float
    host_s: FloatArray
    gpu_log_factors: Mapping[str, float]
    deviations: StepTimeDeviations
    residual: Residual = NO_RESIDUAL
    is_streaming: bool = False
    bounds_gradients: bool = False
    engine: Engine = "eager"

    def log_efficiencies(self, operator_class: IntArray, features: FloatArray) -> FloatArray:
        """Return the logarithms of both efficiencies, shape (kernels, 2, GPUs).

        Args:
            operator_class: Of each kernel.
            features: In the order of `FEATURES`, and then a 1: shape (features + 1, kernels, GPUs); their precision is
                the network's.
        """
        first, second = self._layers[features.dtype]
        hidden = np.matmul(first.take(operator_class, axis=0), features.transpose(1, 0, 2))
        outputs: FloatArray = np.matmul(second.take(operator_class, axis=0), np.tanh(hidden, out=hidden))
        return outputs

    def gpu_factors(self, gpus: Sequence[str]) -> FloatArray:
        """Return each GPU's own factor, 1 where it was not measured."""
        factors: FloatArray = np.exp([self.gpu_log_factors.get(name, 0.0) for name in gpus])
        return factors

    @cached_property
    def _layers(self) -> Mapping[np.dtype[Any], tuple[FloatArray, FloatArray]]:
        """By precision, both layers, shape (classes, out, in); the biases are the weights of a last input that is 1."""
        classes, features, hidden = self.first.shape
        first = np.zeros((classes, hidden + 1, features + 1))
        first[:, :-1, :-1] = self.first.transpose(0, 2, 1)
        first[:, :-1, -1] = self.first_bias
        first[:, -1, -1] = _SATURATED
        second = np.concatenate([self.second, self.second_bias[:, np.newaxis]], axis=1).transpose(0, 2, 1)
        precisions = map(np.dtype, (np.float64, np.float32))
        return {each: (first.astype(each), np.ascontiguousarray(second, dtype=each)) for each in precisions}


_SATURATED = 50.0
"""The hyperbolic tangent of this is 1, to the last digit."""


@lru_cache(maxsize=4)
def efficiency_of(parameters: StepTimeParameters) -> Efficiency:
    """Return the arrays of the artifact ``step_time``, made once for each."""
    classes, features, hidden = len(OperatorClass), len(FEATURES), len(parameters.first_bias[0])
    return Efficiency(
        first=shaped("first", parameters.first, classes, features, hidden),
        first_bias=shaped("first_bias", parameters.first_bias, classes, hidden),
        second=shaped("second", parameters.second, classes, hidden, 2),
        second_bias=shaped("second_bias", parameters.second_bias, classes, 2),
        latency_s=float(parameters.latency_s),
        host_s=shaped("host_s", parameters.host_s, HOST_TERMS),
        gpu_log_factors=parameters.gpu_log_factors,
        deviations=parameters.deviations,
        residual=residual_of(parameters.residual),
    )


_C = OperatorClass
GROUPS = (
    (_C.CONVOLUTION,),
    (_C.GROUPED_CONVOLUTION, _C.PRODUCT, _C.BATCHED_PRODUCT, _C.ATTENTION, _C.RECURRENT),
    (_C.BATCH_NORMALIZATION, _C.NORMALIZATION, _C.REDUCTION, _C.ELEMENTWISE, _C.GATHER),
    (_C.COPY,),
)
"""Classes that share a factor: convolutions, other products, what is fused, copies and casts."""


class CompilerEffect(NamedTuple):
    """What a compiler changes.

    Attributes:
        factors: Of the time of each of `GROUPS`, of kernels that are fused already; what a kernel takes however small
            it is stays.
        deviation: How far 90 % of the truths lie from the point, on the logarithmic scale, where the eager model is
            known well.
    """

    factors: tuple[float, float, float, float]
    deviation: float


INDUCTOR = CompilerEffect(factors=(0.79, 1.1, 0.44, 0.38), deviation=0.35)
"""PyTorch's, of the releases 2.4 and 2.9: medians of five fits, each without a fifth of the families of timm."""


@lru_cache(maxsize=4)
def with_compiler(efficiency: Efficiency, compiler: CompilerEffect = INDUCTOR) -> Efficiency:
    """Return *efficiency* as *compiler* changes it; what was learned from whole eager steps is left out."""
    deviations = efficiency.deviations
    return replace(
        efficiency,
        second_bias=efficiency.second_bias - np.log(class_factors(compiler))[:, np.newaxis],
        deviations=replace(deviations, known=hypot(deviations.known, compiler.deviation)),
        residual=NO_RESIDUAL,
    )


def class_factors(compiler: CompilerEffect) -> FloatArray:
    """Return the factor of each class, 1 for those of no group."""
    factors = np.ones(len(OperatorClass))
    for group, factor in zip(GROUPS, compiler.factors, strict=True):
        factors[list(group)] = factor
    return factors


@lru_cache(maxsize=4)
def with_streaming_limits(efficiency: Efficiency) -> Efficiency:
    """Return *efficiency* where kernels are held to what memory can do."""
    return replace(efficiency, is_streaming=True)


@lru_cache(maxsize=4)
def with_bounded_gradients(efficiency: Efficiency) -> Efficiency:
    """Return *efficiency* where the gradients of convolutions are held to what physics allows."""
    return replace(efficiency, bounds_gradients=True)
