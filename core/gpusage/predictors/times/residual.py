"""The roofline's error on graphs of a kind, learned from whole steps: a smooth correction of its logarithm.

The correction is a sum of radial basis functions around anchors, which are graphs seen in training; far from all of
them it fades to a constant. Each GPU on which many models were measured has its own coefficients, so that speed-ups
between these are better than those of the roofline alone; for any other GPU the roofline stands. Coefficients for all
GPUs together were tried and did not lower the error on families that were held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import NamedTuple

import numpy as np

from gpusage.predictors.arrays import FloatArray, shaped
from gpusage.predictors.artifacts import ResidualParameters
from gpusage.predictors.times.kernels import Kernels
from gpusage.predictors.work.operators import OperatorClass


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


FEATURES = (*StepFeatures._fields, *(f"share_{operator_class.name.lower()}" for operator_class in OperatorClass))
"""The columns: `StepFeatures`, and each class's share of the time."""
RBF_GAMMA = 0.01
"""Gamma of the radial basis functions: 1 / e is left where this times the squared standard deviations is 1."""
MAX_DEVIATIONS = 2.5
"""Features farther from the mean than this, in standard deviations, count as this far."""
KERNEL_COUNT = FEATURES.index("kernel_count")
"""The column of the logarithm of how many kernels a step has."""
FADING = log(4.0)
"""A step of a quarter of the fewest kernels is not corrected at all."""
_TINY = 1e-30
"""Seconds, instead of a division by 0."""
_CLASSES = np.arange(len(OperatorClass))[:, np.newaxis]


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
        familiar = np.maximum(np.minimum(1.0 + (rows[:, KERNEL_COUNT] - self.least_count) / FADING, 1.0), 0.0)
        coefficients = self._coefficients(gpus)
        near = _rbf_kernel(standardize(rows, self.means, self.scales), self.anchors, self._anchor_norms)
        near *= coefficients[:, :-1]
        factors: FloatArray = (near.sum(axis=1) + coefficients[:, -1]) * familiar
        return factors

    def _coefficients(self, gpus: Sequence[str]) -> FloatArray:
        """Return the coefficients of the anchors and the constant, one row per GPU."""
        return self._table.take([self._row_of_gpu.get(name, -1) for name in gpus], axis=0)

    @cached_property
    def _table(self) -> FloatArray:
        """The same, one row for each GPU of `by_gpu`, and zeros as the last one."""
        return np.array([*self.by_gpu.values(), np.zeros(len(self.anchors) + 1)])

    @cached_property
    def _anchor_norms(self) -> FloatArray:
        return _squared_norms(self.anchors)

    @cached_property
    def _row_of_gpu(self) -> Mapping[str, int]:
        return {name: row for row, name in enumerate(self.by_gpu)}


NO_RESIDUAL = Residual(
    means=np.zeros(len(FEATURES)),
    scales=np.ones(len(FEATURES)),
    anchors=np.zeros((0, len(FEATURES))),
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
    """Return the `FEATURES` of one step, one row per GPU."""
    times = seconds.total_s * kernels.counts[:, np.newaxis]
    totals = np.maximum(times.sum(axis=0), _TINY)
    means = (_weights(kernels) @ times / totals).T
    count = max(float(kernels.counts.sum()), 1.0)
    flop, traffic_bytes = float(kernels.counts @ kernels.flop), float(kernels.counts @ kernels.traffic_bytes)
    rows = np.empty((len(totals), len(FEATURES)))
    columns = StepFeatures(*rows.T[: len(StepFeatures._fields)])
    columns.compute_bound[:] = (times * (seconds.compute_s > seconds.traffic_s)).sum(axis=0) / totals
    columns.mean_kernel_s[:] = np.log(totals / count)
    columns.kernel_count[:] = log(count)
    columns.inner[:], columns.width[:], columns.blocks[:], columns.backward[:] = means.T[: len(_Weighted._fields)]
    columns.intensity[:] = log(max(flop, 1.0) / max(traffic_bytes, 1.0))
    columns.half[:] = is_half
    rows[:, len(StepFeatures._fields) :] = means[:, len(_Weighted._fields) :]
    return rows


class _Weighted(NamedTuple):
    """Features that are means over the kernels, lengths first; the shares of the classes are some more."""

    inner: FloatArray
    width: FloatArray
    blocks: FloatArray
    backward: FloatArray


_LENGTHS = _Weighted._fields.index("backward")


def _weights(kernels: Kernels) -> FloatArray:
    """Return what the means are taken of: `_Weighted`, and 1 for each kernel's class; shape (means, kernels)."""
    weights = np.empty((len(_Weighted._fields) + len(OperatorClass), len(kernels.flop)))
    rows = _Weighted(*weights[: len(_Weighted._fields)])
    rows.inner[:], rows.width[:] = kernels.inner, kernels.width
    np.maximum(kernels.blocks, 1.0, out=rows.blocks)
    np.log(weights[:_LENGTHS], out=weights[:_LENGTHS])
    rows.backward[:] = kernels.backward
    weights[len(_Weighted._fields) :] = kernels.operator_class == _CLASSES
    return weights


def residual_of(parameters: ResidualParameters) -> Residual:
    """Return the arrays of an artifact's *parameters*."""
    anchors = shaped("anchors", parameters.anchors, None, len(FEATURES))
    return Residual(
        means=shaped("means", parameters.means, len(FEATURES)),
        scales=shaped("scales", parameters.scales, len(FEATURES)),
        anchors=anchors,
        by_gpu={name: shaped(name, coefficients, len(anchors) + 1) for name, coefficients in parameters.by_gpu.items()},
        least_count=float(parameters.least_count),
    )
