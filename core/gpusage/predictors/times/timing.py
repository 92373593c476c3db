"""How long each kernel takes on each GPU, and what that adds up to: the roofline, all GPUs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gpusage.precisions import ARITHMETIC, HALF
from gpusage.predictors.identity import Identity
from gpusage.predictors.learned.arrays import FloatArray
from gpusage.predictors.times.efficiency import FEATURES, OVERLAP, Efficiency, KernelFeatures
from gpusage.predictors.times.power import sustained_share
from gpusage.predictors.times.residual import KernelSeconds, features_of
from gpusage.predictors.times.streaming import least_s, most_s
from gpusage.predictors.work.kernels import Kernels
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Gpu, Precision

_CUDNN_CLASSES = (OperatorClass.CONVOLUTION, OperatorClass.RECURRENT)
"""In PyTorch ``fp32`` lets cuDNN use TF32 where the GPU has it; matrix products stay in full precision."""
VOLTA = (7, 0)
"""The first with tensor cores, and the first to issue integers and floats side by side."""
TRIP_S = 0.35e-6
"""What a thread waits for a number from memory, on any GPU of these ten years: 500 to 800 cycles, with the way to it.

Source: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", arXiv:2402.13499, latency of
global memory: about 470 (A100, H100) to 540 cycles (RTX 4090); the rest, a miss in the address cache, is a guess.
"""
_MIDDLE_RIDGE = 16.0
"""FP32's ridge point of V100, about, in FLOP per byte."""
_SHORT_S = 50e-6
"""A mean kernel of this length is half short; of 50, 100, 200 and 400 us the one that covered each source best."""
_SMALL_US = 1.0
"""Shorter kernels are alike: latency decides, and none that short was measured by itself."""
_SMALL_SHARE = 0.03
"""The same of a GPU's SMs and of its cache."""
_TINY_S = 1e-30
_LENGTHS = slice(FEATURES.index("compute_us"), FEATURES.index("traffic_per_l2") + 1)
"""Features that are read as logarithms of what the kernel takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one step, one entry per GPU.

    Attributes:
        step_s: The step, from one to the next.
        busy_s: Some kernel runs.
        sm_s: SMs are busy, the mean over all SMs.
        dram_s: The memory would be busy if it moved bytes at its peak.
        kernels_s: The sum of the kernels, before what is known of the GPU or learned from whole steps.
        short_share: How far kernels are so short that what starts them decides, 0 to 1; a share, not seconds.
        features: Of `residual.FEATURES`, one row per GPU.
    """

    step_s: FloatArray
    busy_s: FloatArray
    sm_s: FloatArray
    dram_s: FloatArray
    kernels_s: FloatArray
    short_share: FloatArray
    features: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Ideal:
    """Kernels at a GPU's peaks, and what their efficiencies depend on: shape (kernels, GPUs).

    Attributes:
        compute_s: The arithmetic alone, at the peak of the units that do it.
        traffic_s: The traffic alone, at the peak of the memory.
        cache_s: As many bytes as the L2 cache holds, at the peak of the memory; shape (GPUs,).
        waves: Thread blocks for each SM.
        features: In the order of `efficiency.FEATURES`, and then a 1: shape (features + 1, kernels, GPUs).
    """

    compute_s: FloatArray
    traffic_s: FloatArray
    cache_s: FloatArray
    waves: FloatArray
    features: FloatArray


class KernelTimes(NamedTuple):
    """Seconds of one execution, shape (kernels, GPUs): all in all, and of each thing that may hold a kernel up."""

    total_s: FloatArray
    compute_s: FloatArray
    traffic_s: FloatArray
    launch_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """What each GPU has: shape (GPUs,), or (2 x classes, GPUs), first for kernels that no matrix unit can do.

    Attributes:
        matrix_path: 0 where a class's products run on the CUDA cores, 0.5 for TF32, 1 for half precision.
        before_volta: 1 where integers and floats share the CUDA cores' issue, else 0.
        ridge: Half the logarithm of the ridge point of FP32, around 0.
    """

    flop_per_s: FloatArray
    matrix_path: FloatArray
    bytes_per_s: FloatArray
    sm_count: FloatArray
    l2_bytes: FloatArray
    before_volta: FloatArray
    ridge: FloatArray


def timing_with(efficiency: Efficiency, kernels: Kernels, gpus: Sequence[Gpu], precision: Precision) -> Timing:
    """Return the times of *kernels* on *gpus* as *efficiency* has it."""
    ideal = ideal_times(kernels, gpus, precision)
    times = kernel_times(efficiency, kernels, ideal)
    names = tuple([gpu.board for gpu in gpus])
    factors = efficiency.gpu_factors(names)
    alone_s = kernels.counts @ times.total_s
    busy_s = alone_s * factors
    host_s = float(kernels.host_counts @ efficiency.host_s)
    step_s = (busy_s**OVERLAP + host_s**OVERLAP) ** (1.0 / OVERLAP)
    seconds = KernelSeconds(total_s=times.total_s, compute_s=ideal.compute_s, traffic_s=ideal.traffic_s)
    rows = features_of(kernels, seconds, is_half=precision in HALF)
    missed = np.exp(efficiency.residual.log_factors(rows, names))
    if efficiency.streams:
        at_least_s = kernels.counts @ least_s(ideal.traffic_s, ideal.cache_s)
        missed = np.maximum(missed, at_least_s / np.maximum(busy_s, _TINY_S))
    return Timing(
        step_s=step_s * missed,
        busy_s=busy_s * missed,
        sm_s=kernels.counts @ (times.total_s * np.minimum(ideal.waves, 1.0)) * factors * missed,
        dram_s=kernels.counts @ ideal.traffic_s,
        kernels_s=alone_s,
        short_share=_SHORT_S / (_SHORT_S + alone_s / max(float(kernels.counts.sum()), 1.0)),
        features=rows,
    )


def in_turn(whole: Timing, first: Timing, then: Timing, count: int) -> Timing:
    """Return the times of an answer from those of its two kinds of passes.

    Its passes follow one another: each waits for the token before it, so the host's work for one pass is never hidden
    behind the GPU's work for another.

    Args:
        whole: Of all kernels of the answer, as if the host could prepare every pass at once.
        first: Of the pass over the prompt.
        then: Of a pass over one token.
        count: How often that runs.
    """
    return replace(
        whole,
        step_s=first.step_s + count * then.step_s,
        busy_s=first.busy_s + count * then.busy_s,
        sm_s=first.sm_s + count * then.sm_s,
    )


def kernels_on(efficiency: Efficiency, kernels: Kernels, parts: Sequence[Gpu], precision: Precision) -> FloatArray:
    """Return `Timing.kernels_s` on *parts* of GPUs, to six digits: for ratios, where there are many and no time."""
    times = kernel_times(efficiency, kernels, ideal_times(kernels, parts, precision, np.float32))
    seconds: FloatArray = kernels.counts @ times.total_s
    return seconds


def kernel_times(efficiency: Efficiency, kernels: Kernels, ideal: Ideal) -> KernelTimes:
    """Return each kernel's seconds: the fourth root of the fourth powers' sum, near the larger of the two times."""
    logarithms = efficiency.logarithms(kernels.operator_class, ideal.features)
    times = np.exp(np.negative(logarithms, out=logarithms), out=logarithms)
    compute_s, traffic_s = times[:, 0] * ideal.compute_s, times[:, 1] * ideal.traffic_s
    busy_s: FloatArray = np.sqrt(np.sqrt(np.square(np.square(compute_s)) + np.square(np.square(traffic_s))))
    if efficiency.streams:
        busy_s = np.clip(busy_s, least_s(ideal.traffic_s, ideal.cache_s), most_s(ideal.traffic_s, kernels))
    launch_s = (efficiency.latency_s * kernels.launches + TRIP_S * kernels.trips)[:, np.newaxis]
    return KernelTimes(total_s=busy_s + launch_s, compute_s=compute_s, traffic_s=traffic_s, launch_s=launch_s)


def ideal_times(
    kernels: Kernels, gpus: Sequence[Gpu], precision: Precision, of_features: type[np.floating[Any]] = np.float64
) -> Ideal:
    """Return the times of *kernels* at the peaks of *gpus*, with their features; these may be of fewer digits."""
    rates = _rates(tuple(map(Identity, gpus)), precision)
    path = kernels.operator_class + len(OperatorClass) * (kernels.matrix_units > 0)
    compute_s = kernels.flop[:, np.newaxis] / rates.flop_per_s.take(path, axis=0)
    traffic_s = kernels.traffic_bytes[:, np.newaxis] / rates.bytes_per_s
    waves = kernels.blocks[:, np.newaxis] / rates.sm_count
    features = np.empty((len(FEATURES) + 1, *compute_s.shape), dtype=of_features)
    columns = KernelFeatures(*features[:-1])
    columns.inner[:] = (0.25 * np.log(kernels.inner) - 1.0)[:, np.newaxis]
    columns.width[:] = (0.25 * np.log(kernels.width) - 1.0)[:, np.newaxis]
    columns.backward[:] = kernels.backward[:, np.newaxis]
    columns.half[:] = precision in HALF
    columns.compute_us[:] = compute_s * 1e6 + _SMALL_US
    columns.traffic_us[:] = traffic_s * 1e6 + _SMALL_US
    columns.waves[:] = waves + _SMALL_SHARE
    columns.traffic_per_l2[:] = kernels.traffic_bytes[:, np.newaxis] / rates.l2_bytes + _SMALL_SHARE
    columns.matrix_path[:] = rates.matrix_path.take(path, axis=0)
    columns.before_volta[:] = rates.before_volta
    columns.ridge[:] = rates.ridge
    features[-1] = 1.0
    lengths = features[_LENGTHS]
    np.log(lengths, out=lengths)
    lengths *= 0.2
    cache_s = rates.l2_bytes / rates.bytes_per_s
    return Ideal(compute_s=compute_s, traffic_s=traffic_s, cache_s=cache_s, waves=waves, features=features)


@lru_cache(maxsize=64)
def _rates(gpus: tuple[Identity[Gpu], ...], precision: Precision) -> _Rates:
    rows = [key.value for key in gpus]
    matrix = [[_matrix_path(gpu, operator_class, precision) for gpu in rows] for operator_class in OperatorClass]
    plain = [[(gpu.peak_flop_per_s["fp32"], 0.0) for gpu in rows] for _ in OperatorClass]
    table = np.array([*plain, *matrix]).reshape(2 * len(OperatorClass), len(rows), 2)
    return _Rates(
        flop_per_s=table[:, :, 0] * [sustained_share(gpu) for gpu in rows],
        matrix_path=table[:, :, 1],
        bytes_per_s=np.array([gpu.bandwidth_bytes_per_s for gpu in rows]),
        sm_count=np.array([float(gpu.sm_count) for gpu in rows]),
        l2_bytes=np.array([float(gpu.l2_bytes) for gpu in rows]),
        before_volta=np.array([float(gpu.compute_capability < VOLTA) for gpu in rows]),
        ridge=0.5 * np.log([_ridge_flop_per_byte(gpu) / _MIDDLE_RIDGE for gpu in rows]),
    )


def _ridge_flop_per_byte(gpu: Gpu) -> float:
    return gpu.peak_flop_per_s["fp32"] / gpu.bandwidth_bytes_per_s


def _matrix_path(gpu: Gpu, operator_class: OperatorClass, precision: Precision) -> tuple[float, float]:
    """Return peak FLOP/s and path of a class whose shapes suit matrix units; without such units, the CUDA cores'."""
    precision = ARITHMETIC.get(precision, precision)
    wanted = "tf32" if precision == "fp32" and operator_class in _CUDNN_CLASSES else precision
    peak = gpu.peak_flop_per_s.get(wanted)
    if wanted == "fp32" or peak is None or gpu.compute_capability < VOLTA:
        return gpu.peak_flop_per_s["fp32"], 0.0
    return peak, 0.5 if wanted == "tf32" else 1.0
