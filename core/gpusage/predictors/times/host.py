"""How much of a known step the GPU works: the step's length is weighed between a slow host and a slow GPU.

A step that takes longer than the GPU's predicted time waits for its host, or the GPU's time is predicted too short.
The ratio of the host's time to the GPU's is unknown, so each ratio on a grid is weighed by how far both times would
then lie from what is expected of them. The host is expected to take as long for each kernel as hosts do; if it takes
far longer, it does something else, and how long that takes tells nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpusage.predictors.learned.arrays import FloatArray

SHARPNESS = 8.0
"""A step takes this norm of the GPU's time and the host's: hardly more than the larger one."""
_RATIOS = np.linspace(-7.0, 7.0, 141)
"""Logarithms of the host's time over the GPU's; a host decides by far at the one end, a GPU at the other."""
_WORKING = -np.logaddexp(0.0, SHARPNESS * _RATIOS) / SHARPNESS
"""Logarithms of the GPU's time over the step's, by ratio."""
_WAITING = _WORKING + _RATIOS
"""The same of the host's time."""
MOST_DOUBT = 4.0
"""Standard deviations: a host that takes longer than this does something other than launch kernels, it loads, say."""
_HALF = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDoubt:
    """What is expected of a host, and how little is known of it and of the GPU.

    Attributes:
        launch_s: The host's time for each kernel.
        host: Standard deviation of the logarithm of the host's time.
        own: The same of the GPU's own time, of which the expected one is predicted.
    """

    launch_s: float
    host: float
    own: float


def working_of(busy_s: FloatArray, step_s: FloatArray, kernel_count: FloatArray, doubt: HostDoubt) -> FloatArray:
    """Return the GPU's own time over the step's, 0 to 1: the median of what the known step time leaves possible.

    Args:
        busy_s: The GPU's own time of each step, as predicted.
        step_s: The known time of each step.
        kernel_count: Of each step.
        doubt: What is expected of hosts.
    """
    weights = _weights(busy_s, step_s, kernel_count, doubt)
    return np.asarray(np.exp(np.interp(_median(weights), _RATIOS, _WORKING)))


def gpu_odds(busy_s: FloatArray, step_s: FloatArray, kernel_count: FloatArray, doubt: HostDoubt) -> FloatArray:
    """Return how likely it is, 0 to 1, that the GPU takes longer than the host in each step; arguments as above."""
    weights = _weights(busy_s, step_s, kernel_count, doubt)
    odds: FloatArray = weights[:, _RATIOS < 0].sum(axis=1) / weights.sum(axis=1)
    return odds


def _weights(busy_s: FloatArray, step_s: FloatArray, kernel_count: FloatArray, doubt: HostDoubt) -> FloatArray:
    """Return the weight of each ratio, one row for each step; the largest is 1."""
    own = (_WORKING + np.log(step_s / busy_s)[:, np.newaxis]) / doubt.own
    host = (_WAITING + np.log(step_s / (kernel_count * doubt.launch_s))[:, np.newaxis]) / doubt.host
    against = own**2 + np.minimum(host, MOST_DOUBT) ** 2
    weights: FloatArray = np.exp(-_HALF * (against - against.min(axis=1, keepdims=True)))
    return weights


def _median(weights: FloatArray) -> FloatArray:
    """Return the logarithm of the ratio below which half of each row of *weights* lies."""
    below = weights.cumsum(axis=1) / weights.sum(axis=1, keepdims=True) - _HALF
    after = np.clip((below < 0).sum(axis=1), 1, len(_RATIOS) - 1)
    rows, step = np.arange(len(below)), _RATIOS[1] - _RATIOS[0]
    before = below[rows, after - 1]
    part = np.clip(-before / np.maximum(below[rows, after] - before, 1e-300), 0.0, 1.0)
    return np.asarray(_RATIOS[after - 1] + step * (part + _HALF))
