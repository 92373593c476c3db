"""Seconds of one step: what its kernels add up to, the host, the learned residual, and the interval around the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, hypot

import numpy as np

from gpusage.devices.precisions import HALF
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.intervals import interval_around, unknown_share
from gpusage.predictors.times.efficiency import OVERLAP, Efficiency
from gpusage.predictors.times.engines import times_on
from gpusage.predictors.times.kernel_times import min_streaming_s
from gpusage.predictors.times.kernels import Kernels
from gpusage.predictors.times.residual import KernelSeconds, features_of
from gpusage_hooks.types import Gpu, Interval, ModelGraph, Precision, Workload

_SHORT_S = 50e-6
"""A mean kernel of this length is half short; of 50, 100, 200 and 400 us the one that covered each source best."""
_TINY_S = 1e-30


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


def timing_with(efficiency: Efficiency, kernels: Kernels, gpus: Sequence[Gpu], precision: Precision) -> Timing:
    """Return the times of *kernels* on *gpus* as *efficiency* has it."""
    ideal, times = times_on(efficiency, kernels, gpus, precision)
    names = tuple([gpu.board for gpu in gpus])
    factors = efficiency.gpu_factors(names)
    alone_s = kernels.counts @ times.total_s
    busy_s = alone_s * factors
    host_s = float(kernels.host_counts @ efficiency.host_s)
    step_s = (busy_s**OVERLAP + host_s**OVERLAP) ** (1.0 / OVERLAP)
    seconds = KernelSeconds(total_s=times.learned_s, compute_s=ideal.compute_s, traffic_s=ideal.traffic_s)
    rows = features_of(kernels, seconds, is_half=precision in HALF)
    missed = np.exp(efficiency.residual.log_factors(rows, names))
    if efficiency.is_streaming:
        at_least_s = kernels.counts @ min_streaming_s(ideal)
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


def generation_timing(whole: Timing, first: Timing, then: Timing, count: int) -> Timing:
    """Return the times of a generation from those of its two kinds of passes.

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
    times = times_on(efficiency, kernels, parts, precision, np.float32).as_run
    seconds: FloatArray = kernels.counts @ times.total_s
    return seconds


def step_times_s(
    efficiency: Efficiency, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], timing: Timing
) -> list[Interval]:
    """Return the seconds of one step of *graph* on each of *gpus*, around the points of *timing*."""
    least = 1.0 if workload.lora else min_trained_share(workload.trainable)
    unknown = 2.0 * unknown_share(graph)
    intervals = [
        interval_around(step_s, exp(_distance(efficiency, gpu, short_share, unknown)))
        for gpu, step_s, short_share in zip(gpus, timing.step_s.tolist(), timing.short_share.tolist(), strict=True)
    ]
    return [replace(interval, low=interval.low * least) for interval in intervals] if least < 1 else intervals


def min_trained_share(trainable: float) -> float:
    """Return the least part of the predicted time that a step takes where only a share of the weights is trained.

    The point has a forward pass, gradients of all activations, and of the trained weights: 2 + *trainable* forward
    passes. Where the trained weights are the model's last, gradients of activations stop there: 1 + 2 *trainable*.
    """
    return (1.0 + 2.0 * trainable) / (2.0 + trainable)


def _distance(efficiency: Efficiency, gpu: Gpu, short_share: float, unknown: float) -> float:
    """Return how far 90 % of the truths lie from the point, on the logarithmic scale; *unknown* operators add to it."""
    deviations = efficiency.deviations
    unseen = 0.0 if gpu.board in efficiency.gpu_log_factors else deviations.unseen_gpu
    return hypot(deviations.known, unseen, deviations.short * short_share, unknown)
