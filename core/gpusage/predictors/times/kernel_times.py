"""How long each kernel takes on each GPU, all GPUs at once: the roofline with learned efficiencies, and its bounds.

**Streaming.** The networks learned from whole steps, and from kernels whose operands often lie in the cache. A pass
over one token streams keys, values and weights, far more than a cache holds, and one query per sample makes products
that no whole step has. Kernels of decoding alone are therefore held to what streaming kernels were measured to do: a
step's kernels follow one another closely, and what they count as traffic may come from the cache.

**Gradients.** A convolution's gradient of the input and that of the weight are two kernels, each with the forward
kernel's FLOP and about its bytes, in whatever layout. How the learned efficiencies divide a step between the two passes
was never measured, only their sum. In half precision nearly all of that is of one GPU, under a library of its year: on
other GPUs, gradients came out at five to nine times the forward pass. So they are bounded by it. Where the sum was
measured it stays, and only its parts change.

Source:
    Streaming: NeuSight's operators in fp32 (MIT), on P4, P100, T4, V100 and A100.
    Gradients: NVIDIA's DeepLearningExamples (published AMP training of ResNeXt, SE-ResNeXt and EfficientNet, channels
    last) for the upper bound. DeepBench's single convolutions, which the bound was not
    chosen by, have 2.6 times the forward pass on a V100 and 3.1 times on a T4. The lower one is a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gpusage.caches import Identity
from gpusage.devices.precisions import ARITHMETIC, HALF, NARROW_SPEEDUP, has_matrix_units, has_narrow_units
from gpusage.predictors.arrays import BoolArray, FloatArray
from gpusage.predictors.times.efficiency import FEATURES, Efficiency, KernelFeatures
from gpusage.predictors.times.kernels import BF16_UNITS, NARROW_UNITS, Kernels
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Gpu, Precision
from gpusage_hooks.units import TERA

LEAST_RATIO, MOST_RATIO = 1.5, 2.5
"""Seconds of a backward pass over those of its forward pass, where it has twice the FLOP."""
_FULL_FLOP_RATIO = 2.0


def bound_backward_passes(kernels: Kernels, seconds: FloatArray, keeps_sum: BoolArray) -> FloatArray:
    """Return *seconds* with the backward passes of convolutions within the bounds.

    Args:
        kernels: Of one step.
        seconds: Of one execution of each kernel, shape (kernels, GPUs).
        keeps_sum: On which GPUs both passes together stay as they are.
    """
    is_convolution = kernels.operator_class == OperatorClass.CONVOLUTION
    backward = (is_convolution & (kernels.backward > 0)).nonzero()[0]
    if not len(backward):
        return seconds

    # The forward pass of each backward pass: both are of the same kind of node.
    place_of_kind = np.zeros(int(kernels.kind.max()) + 1, dtype=np.int64)
    forwards = (is_convolution & (kernels.backward == 0)).nonzero()[0]
    place_of_kind[kernels.kind[forwards]] = forwards
    forward = place_of_kind[kernels.kind[backward]]

    # A frozen weight has one product backward, not two: half of the FLOP, and of the bounds.
    scale = (kernels.flop[backward] / np.maximum(kernels.flop[forward], 1.0) / _FULL_FLOP_RATIO)[:, np.newaxis]
    before = seconds[backward] / seconds[forward]
    ratio = np.clip(before, LEAST_RATIO * scale, MOST_RATIO * scale)

    forward_s = seconds[forward] * np.where(keeps_sum, (1.0 + before) / (1.0 + ratio), 1.0)
    result: FloatArray = seconds.copy()
    result[forward], result[backward] = forward_s, forward_s * ratio
    return result


SUSTAINED = 0.9
"""The rate that is held, as a power of the watts that are there over those of the median."""


def sustained_share(gpu: Gpu) -> float:
    """Return the share of its peak rate that *gpu* holds, 1 where its power limit is enough or its chip is not known.

    Chips of one generation need about the same power for the same arithmetic. A board that has half of what the others
    have runs its kernels below its clock: in the median of NeuSight's largest FP32 products (`linear`, the slowest
    30 %) T4 reaches 39 % of its peak, where A100 of 250 W reaches 78 %, V100 86 % and A100 of 300 W 90 %.
    """
    if gpu.watts_per_teraflop is None:
        return 1.0
    watts = gpu.power_limit_w * TERA / gpu.peak_flop_per_s["fp32"]
    return float(min(1.0, watts / gpu.watts_per_teraflop) ** SUSTAINED)


MOST_SHARE = 0.93
"""Of the memory's peak: no measured kernel of one number after the other moved more, of 300 MB and above."""
SM_BYTES_PER_S = 34e9
"""What the kernels of one SM stream from memory at most; H20 and H200 have more memory than SMs to read it."""
LEAST_SHARE = 0.5
"""The same of batched products of at most four columns, of 100 MB and above: the median, from 0.44 (T4) to 0.73."""
FILLING_S = 50e-6
"""What smaller ones of these take in addition: with it 9 of 10 are within 1.2 times the limit, on each GPU."""
_FEW_FLOP_PER_BYTE = 4.0
# A product of sums as short as this writes more than it reads: it is an outer product, which is slower.
_SHORT_SUM = 4.0


def streaming_bytes_per_s(gpu: Gpu) -> float:
    """Return the rate at which kernels of *gpu* stream from its memory at most."""
    return min(MOST_SHARE * gpu.bandwidth_bytes_per_s, SM_BYTES_PER_S * gpu.sm_count)


def min_streaming_s(ideal: Ideal) -> FloatArray:
    """Return the least seconds of kernels, shape (kernels, GPUs): what is beyond the cache comes from the memory."""
    return np.maximum(ideal.traffic_s - ideal.cache_s, 0.0) / ideal.streaming_share


def max_streaming_s(traffic_s: FloatArray, kernels: Kernels) -> FloatArray:
    """Return the most seconds of kernels, shape (kernels, GPUs): infinite but for batched products of few columns."""
    has_few_columns = kernels.flop <= _FEW_FLOP_PER_BYTE * kernels.traffic_bytes
    has_few_columns &= (kernels.operator_class == OperatorClass.BATCHED_PRODUCT) & (kernels.inner > _SHORT_SUM)
    return np.where(has_few_columns[:, np.newaxis], traffic_s / LEAST_SHARE + FILLING_S, np.inf)


# In PyTorch ``fp32`` lets cuDNN use TF32 where the GPU has it; matrix products stay in full precision.
_CUDNN_CLASSES = (OperatorClass.CONVOLUTION, OperatorClass.RECURRENT)
LOAD_LATENCY_S = 0.35e-6
"""What a thread waits for a number from memory, on any GPU of these ten years: 500 to 800 cycles, with the way to it.

Source: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", arXiv:2402.13499, latency of
global memory: about 470 (A100, H100) to 540 cycles (RTX 4090); the rest, a miss in the address cache, is a guess.
"""
# FP32's ridge point of V100, about, in FLOP per byte.
_MIDDLE_RIDGE = 16.0
# Shorter kernels are alike: latency decides, and none that short was measured by itself.
_SMALL_US = 1.0
# The same of a GPU's SMs and of its cache.
_SMALL_SHARE = 0.03
# Features that are read as logarithms of what the kernel takes.
_LENGTHS = slice(FEATURES.index("compute_us"), FEATURES.index("traffic_per_l2") + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ideal:
    """Kernels at a GPU's peaks, and what their efficiencies depend on: shape (kernels, GPUs).

    Attributes:
        compute_s: The arithmetic alone, at the peak of the units that do it.
        traffic_s: The traffic alone, at the peak of the memory.
        cache_s: As many bytes as the L2 cache holds, at the peak of the memory; shape (GPUs,).
        streaming_share: Of the memory's peak, what kernels stream at most; shape (GPUs,).
        waves: Thread blocks for each SM.
        keeps_sum: Where the sum of forward and backward passes was measured; shape (GPUs,).
        features: In the order of `efficiency.FEATURES`, and then a 1: shape (features + 1, kernels, GPUs).
    """

    compute_s: FloatArray
    traffic_s: FloatArray
    cache_s: FloatArray
    streaming_share: FloatArray
    waves: FloatArray
    keeps_sum: BoolArray
    features: FloatArray


class KernelTimes(NamedTuple):
    """Seconds of one execution, shape (kernels, GPUs): all in all, and of each thing that may hold a kernel up.

    Attributes:
        learned_s: All in all as the networks have it, before gradients are bounded: what the residual was fitted to.
    """

    total_s: FloatArray
    learned_s: FloatArray
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
        keeps_sum: As in `Ideal`, as is *streaming_share*.
        narrow_speedup: Of products of numbers of 1 byte, over those of 2.
    """

    flop_per_s: FloatArray
    matrix_path: FloatArray
    bytes_per_s: FloatArray
    sm_count: FloatArray
    l2_bytes: FloatArray
    before_volta: FloatArray
    ridge: FloatArray
    keeps_sum: BoolArray
    streaming_share: FloatArray
    narrow_speedup: FloatArray


# Fields of `_Rates` that are one number per GPU.
_FIGURES = (
    *("bytes_per_s", "sm_count", "l2_bytes", "before_volta"),
    *("ridge", "keeps_sum", "streaming_share", "narrow_speedup"),
)


def kernel_times(efficiency: Efficiency, kernels: Kernels, ideal: Ideal) -> KernelTimes:
    """Return each kernel's seconds: the fourth root of the fourth powers' sum, near the larger of the two times."""
    log_efficiencies = efficiency.log_efficiencies(kernels.operator_class, ideal.features)
    times = np.exp(np.negative(log_efficiencies, out=log_efficiencies), out=log_efficiencies)
    compute_s, traffic_s = times[:, 0] * ideal.compute_s, times[:, 1] * ideal.traffic_s
    busy_s: FloatArray = np.sqrt(np.sqrt(np.square(np.square(compute_s)) + np.square(np.square(traffic_s))))

    if efficiency.is_streaming:
        busy_s = np.clip(busy_s, min_streaming_s(ideal), max_streaming_s(ideal.traffic_s, kernels))
    launch_s = (efficiency.latency_s * kernels.launches + LOAD_LATENCY_S * kernels.dependent_loads)[:, np.newaxis]
    learned_s = busy_s + launch_s

    return KernelTimes(
        total_s=bound_backward_passes(kernels, learned_s, ideal.keeps_sum)
        if efficiency.bounds_gradients
        else learned_s,
        learned_s=learned_s,
        compute_s=compute_s,
        traffic_s=traffic_s,
        launch_s=launch_s,
    )


def ideal_times(
    kernels: Kernels, gpus: Sequence[Gpu], precision: Precision, of_features: type[np.floating[Any]] = np.float64
) -> Ideal:
    """Return the times of *kernels* at the peaks of *gpus*, with their features; these may be of fewer digits."""
    rates = _rates(tuple(map(Identity, gpus)), precision)
    path = kernels.operator_class + len(OperatorClass) * (kernels.matrix_units > 0)
    compute_s = kernels.flop[:, np.newaxis] / rates.flop_per_s.take(path, axis=0)
    of_bf16 = kernels.matrix_units == BF16_UNITS
    if of_bf16.any():
        in_bf16 = _rates(tuple(map(Identity, gpus)), "bf16").flop_per_s.take(path[of_bf16], axis=0)
        compute_s[of_bf16] = kernels.flop[of_bf16, np.newaxis] / in_bf16
    traffic_s = kernels.traffic_bytes[:, np.newaxis] / rates.bytes_per_s
    waves = kernels.blocks[:, np.newaxis] / rates.sm_count

    features = np.empty((len(FEATURES) + 1, *compute_s.shape), dtype=of_features)
    columns = KernelFeatures(*features[:-1])
    columns.inner[:] = (0.25 * np.log(kernels.inner) - 1.0)[:, np.newaxis]
    columns.width[:] = (0.25 * np.log(kernels.width) - 1.0)[:, np.newaxis]
    columns.backward[:] = kernels.backward[:, np.newaxis]
    columns.half[:] = (of_bf16 | (precision in HALF))[:, np.newaxis]
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

    # The features are those of two bytes: no kernel of fp8 was measured, and the share of the peak is taken as theirs.
    if precision == "fp8-mixed":
        compute_s /= np.where(kernels.matrix_units[:, np.newaxis] == NARROW_UNITS, rates.narrow_speedup, 1.0)
    return Ideal(
        compute_s=compute_s,
        traffic_s=traffic_s,
        cache_s=rates.l2_bytes / rates.bytes_per_s,
        streaming_share=rates.streaming_share,
        waves=waves,
        keeps_sum=rates.keeps_sum,
        features=features,
    )


@lru_cache(maxsize=64)
def _rates(gpus: tuple[Identity[Gpu], ...], precision: Precision) -> _Rates:
    count, classes = len(gpus), len(OperatorClass)
    # Kernels that no matrix unit can do come first, then those that it can, so that a kernel's path is one index.
    flop_per_s, matrix_path = np.empty((2 * classes, count)), np.zeros((2 * classes, count))
    figures = np.empty((len(_FIGURES), count))
    for place, key in enumerate(gpus):
        gpu = key.value
        plain = gpu.peak_flop_per_s["fp32"]
        flop_per_s[:classes, place] = plain
        for operator_class in OperatorClass:
            path = _matrix_path(gpu, operator_class, precision)
            flop_per_s[classes + operator_class, place], matrix_path[classes + operator_class, place] = path
        flop_per_s[:, place] *= sustained_share(gpu)
        figures[:, place] = (
            gpu.bandwidth_bytes_per_s,
            gpu.sm_count,
            gpu.l2_bytes,
            not has_matrix_units(gpu),
            plain / gpu.bandwidth_bytes_per_s / _MIDDLE_RIDGE,
            precision not in HALF or gpu.is_measured_in_half,  # in fp32 GPUs of each kind were measured
            streaming_bytes_per_s(gpu) / gpu.bandwidth_bytes_per_s,
            NARROW_SPEEDUP if has_narrow_units(gpu, precision) else 1.0,
        )
    columns = dict(zip(_FIGURES, figures, strict=True))
    columns["ridge"] = 0.5 * np.log(columns["ridge"])
    keeps_sum = columns.pop("keeps_sum") > 0
    return _Rates(flop_per_s=flop_per_s, matrix_path=matrix_path, keeps_sum=keeps_sum, **columns)


def _matrix_path(gpu: Gpu, operator_class: OperatorClass, precision: Precision) -> tuple[float, float]:
    """Return peak FLOP/s and path of a class whose shapes suit matrix units; without such units, the CUDA cores'."""
    precision = ARITHMETIC.get(precision, precision)
    wanted = "tf32" if precision == "fp32" and operator_class in _CUDNN_CLASSES else precision
    peak = gpu.peak_flop_per_s.get(wanted)
    if wanted == "fp32" or peak is None or not has_matrix_units(gpu):
        return gpu.peak_flop_per_s["fp32"], 0.0
    return peak, 0.5 if wanted == "tf32" else 1.0
