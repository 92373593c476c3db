"""What a convolution's backward pass may take beside its forward pass: the bounds of physics around what was learned.

The gradient of the input and that of the weight are two kernels, each with the forward kernel's FLOP and about its
bytes, in whatever layout. How the learned efficiencies divide a step between the two passes was never measured, only
their sum. In half precision nearly all of that is of one GPU, under a library of its year: on other GPUs, gradients
came out at five to nine times the forward pass. So they are bounded by it. Where the sum was measured it stays, and
only its parts change.

Source:
    NVIDIA's DeepLearningExamples (published AMP training of ResNeXt, SE-ResNeXt and EfficientNet, channels last) for
    the upper bound. DeepBench's single convolutions, which the
    bound was not chosen by, have 2.6 times the forward pass on a V100 and 3.1 times on a T4. The lower one is a guess.
"""

from __future__ import annotations

import numpy as np

from gpusage.devices.precisions import HALF
from gpusage.predictors.arrays import BoolArray, FloatArray
from gpusage.predictors.times.kernels import Kernels
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Gpu, Precision

LEAST_RATIO, MOST_RATIO = 1.5, 2.5
"""Seconds of a backward pass over those of its forward pass, where it has twice the FLOP."""
_FULL_FLOP_RATIO = 2.0
_TRAINED_IN_HALF = frozenset({"rtx-3090"})
"""GPUs on which the training of many models was measured in half precision: timm's, see the artifact's card."""


def is_sum_measured(gpu: Gpu, precision: Precision) -> bool:
    """Return whether training in *precision* was measured well on *gpu*; in fp32 it was on GPUs of each kind."""
    return precision not in HALF or gpu.board in _TRAINED_IN_HALF


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
    place_of_kind = np.zeros(int(kernels.kind.max()) + 1, dtype=np.int64)
    forwards = (is_convolution & (kernels.backward == 0)).nonzero()[0]
    place_of_kind[kernels.kind[forwards]] = forwards
    forward = place_of_kind[kernels.kind[backward]]
    scale = (kernels.flop[backward] / np.maximum(kernels.flop[forward], 1.0) / _FULL_FLOP_RATIO)[:, np.newaxis]
    before = seconds[backward] / seconds[forward]
    ratio = np.clip(before, LEAST_RATIO * scale, MOST_RATIO * scale)
    forward_s = seconds[forward] * np.where(keeps_sum, (1.0 + before) / (1.0 + ratio), 1.0)
    result: FloatArray = seconds.copy()
    result[forward], result[backward] = forward_s, forward_s * ratio
    return result
