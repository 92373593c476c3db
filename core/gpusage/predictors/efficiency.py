"""How much of a GPU's peak each class of operator reaches: what was learned, and how it is worked out.

A kernel takes the 4-norm of two times, its arithmetic and its traffic, each at the GPU's peak over a learned
efficiency. The logarithms of both efficiencies come from one small network a class of operator, with one hidden layer;
its inputs are the kernel's shape and what the catalogue says of the GPU, as ratios. `gpusage train` makes the artifact
``step_time``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusage.predictors.identity import Identity
from gpusage.predictors.pretrained import load
from gpusage.predictors.residual import NO_RESIDUAL, Residual, residual_of

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

FEATURES = (
    "inner",
    "width",
    "backward",
    "half",
    "compute_us",
    "traffic_us",
    "waves",
    "traffic_per_l2",
    "matrix_path",
    "before_volta",
    "ridge",
)
"""What a network reads, in this order; lengths and ratios as logarithms."""
OVERLAP = 4.0
"""Host and GPU work side by side: a step takes this norm of the two times, near their maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
        deviations: 90 % of the truths lie within so much on the logarithmic scale, each campaign of measurements
            counting alike: on a measured GPU of known models, and what an unseen GPU and short kernels add.
        residual: What whole steps take beyond the sum of their kernels.
    """

    first: FloatArray
    first_bias: FloatArray
    second: FloatArray
    second_bias: FloatArray
    latency_s: float
    host_s: FloatArray
    gpu_log_factors: Mapping[str, float]
    deviations: Mapping[str, float]
    residual: Residual = NO_RESIDUAL

    def logarithms(self, operator_class: IntArray, features: FloatArray) -> FloatArray:
        """Return the logarithms of both efficiencies, shape (kernels, 2, GPUs).

        Args:
            operator_class: A kernel.
            features: In the order of `FEATURES`, and then a 1: shape (features + 1, kernels, GPUs); their precision is
                the network's.
        """
        first, second = _layers(Identity(self), features.dtype)
        hidden = np.matmul(first[operator_class], features.transpose(1, 0, 2))
        outputs: FloatArray = np.matmul(second[operator_class], np.tanh(hidden, out=hidden))
        return outputs


@lru_cache(maxsize=8)
def _layers(efficiency: Identity[Efficiency], precision: np.dtype[Any]) -> tuple[FloatArray, FloatArray]:
    """Return both layers, shape (classes, out, in), the biases being the weights of a last input that is 1."""
    found = efficiency.value
    classes, features, hidden = found.first.shape
    first = np.zeros((classes, hidden + 1, features + 1))
    first[:, :-1, :-1] = found.first.transpose(0, 2, 1)
    first[:, :-1, -1] = found.first_bias
    first[:, -1, -1] = _SATURATED
    second = np.concatenate([found.second, found.second_bias[:, np.newaxis]], axis=1)
    return first.astype(precision), np.ascontiguousarray(second.transpose(0, 2, 1), dtype=precision)


_SATURATED = 50.0
"""The hyperbolic tangent of this is 1, to the last digit."""


def efficiency_of(parameters: Mapping[str, Any]) -> Efficiency:
    """Return the arrays of an artifact's *parameters*."""
    return Efficiency(
        first=np.array(parameters["first"]),
        first_bias=np.array(parameters["first_bias"]),
        second=np.array(parameters["second"]),
        second_bias=np.array(parameters["second_bias"]),
        latency_s=float(parameters["latency_s"]),
        host_s=np.array(parameters["host_s"]),
        gpu_log_factors=parameters["gpu_log_factors"],
        deviations=parameters["deviations"],
        residual=residual_of(parameters["residual"]),
    )


@lru_cache(maxsize=1)
def shipped() -> Efficiency:
    """Return what gpusage comes with."""
    return efficiency_of(load("step_time")["parameters"])
