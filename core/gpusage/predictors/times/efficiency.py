"""What was learned of step times: efficiencies of kernels, what a compiler changes, and the residual of whole steps.

**Efficiencies.** A kernel takes the 4-norm of two times, its arithmetic and its traffic, each at the GPU's peak over a
learned efficiency. The logarithms of both efficiencies come from a small network with one hidden layer, one for each
class of operator. Its inputs are the kernel's shape and what the catalogue says of the GPU, as ratios. `gpusage train`
makes the artifact ``step_time``.

**Compilers.** PyTorch's fuses operators (`gpusage.predictors.work.lowering.fused`), chooses memory layouts and writes
the fused kernels itself. Its host launches fewer kernels, each as slowly as before: no public run measures that, for
all keep their GPU busy. The factors were fitted on timm's compiled runs, 872 of 52 families on three GPUs.

**Residual.** The roofline's error on graphs of a kind, learned from whole steps, is corrected on the logarithmic scale
by a sum of Gaussian radial basis functions around anchors, which are graphs seen in training; far from all of them it
fades to a constant. It is a sparse Gaussian process with the anchors as inducing points, and a random intercept for
each model, fitted by iteratively reweighted least squares. Each GPU on which many models were measured has its own
coefficients, so that speed-ups between these are better than those of the roofline alone; for any other GPU the
roofline stands. Coefficients for all GPUs together were tried and did not lower the error on families that were held
out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import log
from typing import Any, NamedTuple

import numpy as np

from gpusage.predictors.arrays import FloatArray, IntArray
from gpusage.predictors.artifacts import StepTimeDeviations, StepTimeParameters, shaped
from gpusage.predictors.times.kernels import Kernels
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Engine


class StepFeatures(NamedTuple):
    """What is known of a step on each GPU: means over its kernels, weighted by their time, some as logarithms.

    Attributes:
        compute_bound: The share of the time in kernels that arithmetic holds up more than traffic.
        mean_kernel_s: Logarithm.
        kernel_count: Logarithm.
        inner: Mean logarithm of the sums' length.
        width: The same of the width.
        blocks: The same of the thread blocks.
        intensity: Logarithm of FLOP per byte.
        backward: The share of backward passes.
        half: 1 in fp16 and bf16, else 0.
    """

    compute_bound: FloatArray
    mean_kernel_s: FloatArray
    kernel_count: FloatArray
    inner: FloatArray
    width: FloatArray
    blocks: FloatArray
    intensity: FloatArray
    backward: FloatArray
    half: FloatArray


STEP_FEATURES = (*StepFeatures._fields, *(f"share_{operator_class.name.lower()}" for operator_class in OperatorClass))
"""The columns: `StepFeatures`, and each class's share of the time."""
RBF_GAMMA = 0.01
"""Gamma of the radial basis functions: 1 / e is left where this times the squared standard deviations is 1."""
MAX_DEVIATIONS = 2.5
"""Features farther from the mean than this, in standard deviations, count as this far."""
KERNEL_COUNT = STEP_FEATURES.index("kernel_count")
"""The column of the logarithm of how many kernels a step has."""
FADING = log(4.0)
"""A step of a quarter of the fewest kernels is not corrected at all."""
# Seconds, instead of a division by 0.
_TINY = 1e-30
_CLASSES = np.arange(len(OperatorClass))[:, np.newaxis]
# Fields of `StepFeatures` that are means over the kernels, as the shares of the classes are.
_MEANS = ("inner", "width", "blocks", "backward")


class KernelSeconds(NamedTuple):
    """Seconds of one execution of each kernel, shape (kernels, GPUs): by the roofline, and at the GPU's peaks."""

    total_s: FloatArray
    compute_s: FloatArray
    traffic_s: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Residual:
    """What was learned.

    Attributes:
        means: Of the features in training.
        scales: Their standard deviations.
        anchors: Shape (anchors, features), in standard deviations.
        by_gpu: Coefficient of each anchor, and a constant, by GPU.
        least_count: Logarithm of the fewest kernels that a step in training had; smaller ones are not corrected.
    """

    means: FloatArray
    scales: FloatArray
    anchors: FloatArray
    by_gpu: Mapping[str, FloatArray]
    least_count: float

    def log_factors(self, rows: FloatArray, gpus: Sequence[str]) -> FloatArray:
        """Return the logarithms of truth over roofline, *rows* and *gpus* (names) one entry per GPU each."""
        if self.by_gpu.keys().isdisjoint(gpus):
            return np.zeros(len(gpus))

        # A step of fewer kernels than any in training fades to the roofline as it is.
        familiar = np.maximum(np.minimum(1.0 + (rows[:, KERNEL_COUNT] - self.least_count) / FADING, 1.0), 0.0)
        coefficients = self._table.take([self._row_of_gpu.get(name, -1) for name in gpus], axis=0)
        near = _rbf_kernel(standardize(rows, self.means, self.scales), self.anchors, self._anchor_norms)
        near *= coefficients[:, :-1]
        factors: FloatArray = (near.sum(axis=1) + coefficients[:, -1]) * familiar
        return factors

    @cached_property
    def _table(self) -> FloatArray:
        """The coefficients and the constant, one row for each GPU of `by_gpu`; zeros, at the end, for any other."""
        return np.array([*self.by_gpu.values(), np.zeros(len(self.anchors) + 1)])

    @cached_property
    def _anchor_norms(self) -> FloatArray:
        return _squared_norms(self.anchors)

    @cached_property
    def _row_of_gpu(self) -> Mapping[str, int]:
        return {name: row for row, name in enumerate(self.by_gpu)}


NO_RESIDUAL = Residual(
    means=np.zeros(len(STEP_FEATURES)),
    scales=np.ones(len(STEP_FEATURES)),
    anchors=np.zeros((0, len(STEP_FEATURES))),
    by_gpu={},
    least_count=0.0,
)
"""The roofline as it is."""


def standardize(rows: FloatArray, means: FloatArray, scales: FloatArray) -> FloatArray:
    """Return *rows* in standard deviations from the mean, at most `MAX_DEVIATIONS`."""
    near: FloatArray = np.maximum(np.minimum((rows - means) / scales, MAX_DEVIATIONS), -MAX_DEVIATIONS)
    return near


def rbf_kernel(rows: FloatArray, anchors: FloatArray) -> FloatArray:
    """Return the radial basis function of each anchor at each row, both in standard deviations."""
    return _rbf_kernel(rows, anchors, _squared_norms(anchors))


def _rbf_kernel(rows: FloatArray, anchors: FloatArray, anchor_norms: FloatArray) -> FloatArray:
    """Return `rbf_kernel` with the anchors' squared norms, which stay the same from step to step."""
    squares = _squared_norms(rows)[:, np.newaxis] + anchor_norms
    squares -= 2.0 * (rows @ anchors.T)
    values: FloatArray = np.exp(-RBF_GAMMA * np.maximum(squares, 0.0))
    return values


def _squared_norms(rows: FloatArray) -> FloatArray:
    """Return the squared length of each row."""
    squares: FloatArray = np.square(rows).sum(axis=1)
    return squares


def features_of(kernels: Kernels, seconds: KernelSeconds, *, is_half: bool) -> FloatArray:
    """Return the `STEP_FEATURES` of one step, one row per GPU."""
    times = seconds.total_s * kernels.counts[:, np.newaxis]
    totals = np.maximum(times.sum(axis=0), _TINY)

    # Means over the kernels, weighted by their time, of all GPUs in one product: of three lengths, of whether it is a
    # backward pass, and of whether it is of each class.
    own = len(_MEANS)
    weights = np.empty((own + len(OperatorClass), len(kernels.flop)))
    weights[0], weights[1] = kernels.inner, kernels.width
    np.maximum(kernels.blocks, 1.0, out=weights[2])
    np.log(weights[:3], out=weights[:3])
    weights[3] = kernels.backward
    weights[own:] = kernels.operator_class == _CLASSES
    means = (weights @ times / totals).T

    count = max(float(kernels.counts.sum()), 1.0)
    flop, traffic_bytes = float(kernels.counts @ kernels.flop), float(kernels.counts @ kernels.traffic_bytes)
    rows = np.empty((len(totals), len(STEP_FEATURES)))
    columns = StepFeatures(*rows.T[: len(StepFeatures._fields)])
    columns.compute_bound[:] = (times * (seconds.compute_s > seconds.traffic_s)).sum(axis=0) / totals
    columns.mean_kernel_s[:] = np.log(totals / count)
    columns.kernel_count[:] = log(count)
    columns.inner[:], columns.width[:], columns.blocks[:], columns.backward[:] = means.T[:own]
    columns.intensity[:] = log(max(flop, 1.0) / max(traffic_bytes, 1.0))
    columns.half[:] = is_half
    rows[:, len(StepFeatures._fields) :] = means[:, own:]
    return rows


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
        bounds_gradients: Whether convolutions' gradients are held to what physics allows.
        engine: What runs the kernels; all but ``eager`` have times of their own (`gpusage.predictors.times.step_time`).
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

    @cached_property
    def _layers(self) -> Mapping[np.dtype[Any], tuple[FloatArray, FloatArray]]:
        """By precision, both layers, shape (classes, out, in); the biases are the weights of a last input that is 1."""
        classes, features, hidden = self.first.shape
        first = np.zeros((classes, hidden + 1, features + 1))
        first[:, :-1, :-1] = self.first.transpose(0, 2, 1)
        first[:, :-1, -1] = self.first_bias
        first[:, -1, -1] = _SATURATED  # a hidden unit that is 1, for the second layer's biases
        second = np.concatenate([self.second, self.second_bias[:, np.newaxis]], axis=1).transpose(0, 2, 1)

        precisions = map(np.dtype, (np.float64, np.float32))
        return {each: (first.astype(each), np.ascontiguousarray(second, dtype=each)) for each in precisions}


# The hyperbolic tangent of this is 1, to the last digit.
_SATURATED = 50.0


@lru_cache(maxsize=4)
def efficiency_of(parameters: StepTimeParameters) -> Efficiency:
    """Return the arrays of the artifact ``step_time``, made once for each."""
    classes, features, hidden = len(OperatorClass), len(FEATURES), len(parameters.first_bias[0])

    learned, columns = parameters.residual, len(STEP_FEATURES)
    anchors = shaped("anchors", learned.anchors, None, columns)
    residual = Residual(
        means=shaped("means", learned.means, columns),
        scales=shaped("scales", learned.scales, columns),
        anchors=anchors,
        by_gpu={name: shaped(name, coefficients, len(anchors) + 1) for name, coefficients in learned.by_gpu.items()},
        least_count=float(learned.least_count),
    )

    return Efficiency(
        first=shaped("first", parameters.first, classes, features, hidden),
        first_bias=shaped("first_bias", parameters.first_bias, classes, hidden),
        second=shaped("second", parameters.second, classes, hidden, 2),
        second_bias=shaped("second_bias", parameters.second_bias, classes, 2),
        latency_s=float(parameters.latency_s),
        host_s=shaped("host_s", parameters.host_s, HOST_TERMS),
        gpu_log_factors=parameters.gpu_log_factors,
        deviations=parameters.deviations,
        residual=residual,
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
    """

    factors: tuple[float, float, float, float]


INDUCTOR = CompilerEffect(factors=(0.79, 1.1, 0.44, 0.38))
"""PyTorch's, of the releases 2.4 and 2.9: medians of five fits, each without a fifth of the families of timm."""


@lru_cache(maxsize=4)
def with_compiler(efficiency: Efficiency, compiler: CompilerEffect = INDUCTOR) -> Efficiency:
    """Return *efficiency* as *compiler* changes it; what was learned from whole eager steps is left out."""
    bias = efficiency.second_bias - np.log(class_factors(compiler))[:, np.newaxis]
    return replace(efficiency, second_bias=bias, residual=NO_RESIDUAL)


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
