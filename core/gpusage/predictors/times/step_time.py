"""Seconds of one step as intervals: how far the truths lie from the roofline's points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, hypot

from gpusage.predictors.learned.intervals import around, unknown_share
from gpusage.predictors.times.efficiency import Efficiency
from gpusage.predictors.times.timing import Timing
from gpusage_hooks.types import Gpu, Interval, ModelGraph, Workload


def step_times_s(
    efficiency: Efficiency, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], timing: Timing
) -> list[Interval]:
    """Return the seconds of one step of *graph* on each of *gpus*, around the points of *timing*."""
    least = least_trained(workload.trainable)
    unknown = 2.0 * unknown_share(graph)
    intervals = [
        around(step_s, exp(_distance(efficiency, gpu, short_share, unknown)))
        for gpu, step_s, short_share in zip(gpus, timing.step_s.tolist(), timing.short_share.tolist(), strict=True)
    ]
    return [replace(interval, low=interval.low * least) for interval in intervals] if least < 1 else intervals


def least_trained(trainable: float) -> float:
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
