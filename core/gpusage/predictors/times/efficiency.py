"""How much of a GPU's peak each class of operator reaches: the learned values, and the computation.

A kernel takes the 4-norm of two times, its arithmetic and its traffic, each at the GPU's peak over a learned
efficiency. The logarithms of both efficiencies come from a small network with one hidden layer, one for each class of
operator. Its inputs are the kernel's shape and what the catalogue says of the GPU, as ratios. `gpusage train` makes
the artifact ``step_time``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from gpusage.predictors.learned.arrays import FloatArray, IntArray, shaped
from gpusage.predictors.learned.artifacts import StepTimeDeviations, StepTimeParameters
from gpusage.predictors.times.residual import NO_RESIDUAL, Residual, residual_of
from gpusage.predictors.work.operators import OperatorClass


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
"""What the host does: see `gpusage.predictors.work.kernels.Kernels.host_counts`."""
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
        streams: Whether kernels are held to what memory can do (`gpusage.predictors.times.streaming`).
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
    streams: bool = False

    def logarithms(self, operator_class: IntArray, features: FloatArray) -> FloatArray:
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
