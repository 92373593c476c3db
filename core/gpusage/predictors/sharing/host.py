"""How much of an observed step the GPU works, and how much it waits for its host.

**From a step time.** A step that takes longer than the GPU's predicted time waits for its host, or the GPU's time is
predicted too short. The ratio of the host's time to the GPU's is unknown, so its posterior is computed on a grid: a
ratio is the less likely, the farther both times would then lie from what is expected of them, log-normally. A host is
expected to take as long for each kernel as hosts do; one that takes far longer does something else, and how long that
takes shows nothing.

**From a utilization at another batch size.** What a step takes beyond the predicted kernels and gaps, the GPU waited.
Part of that is the host's work for each step, the same at any batch; the rest is data, so much for each sample. One
figure shows their sum alone, so the part of each step is taken to be at most `MAX_STEP_GAPS` times the gaps that a
usual host leaves. The interval's ends are that all of the wait is per step, or none, and that the account misses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.artifacts import HostUncertainty
from gpusage.predictors.intervals import NINETY_PERCENT
from gpusage.predictors.times.activity import GREATEST_SHARE, LEAST_SHARE
from gpusage_hooks.types import Gpu, Interval

SHARPNESS = 8.0
"""A step takes this norm of the GPU's time and the host's: hardly more than the larger one."""
# Logarithms of the host's time over the GPU's; a host decides by far at the one end, a GPU at the other.
_RATIOS = np.linspace(-7.0, 7.0, 141)
# Logarithms of the GPU's time over the step's, by ratio.
_LOG_GPU_SHARE = -np.logaddexp(0.0, SHARPNESS * _RATIOS) / SHARPNESS
# The same of the host's time.
_LOG_HOST_SHARE = _LOG_GPU_SHARE + _RATIOS
MAX_HOST_DEVIATION = 4.0
"""Standard deviations: a host that takes longer than this does something other than launch kernels, it loads, say."""
_HALF = 0.5
_MIDDLE = (0.4, 0.6)
# A model of views alone has no kernels: its step is the host's.
_LEAST_S = 1e-9


def gpu_time_shares(
    busy_s: FloatArray, step_s: FloatArray, kernel_count: FloatArray, doubt: HostUncertainty
) -> FloatArray:
    """Return the GPU's own time over the step's, 0 to 1: the middle of what the known step time leaves possible.

    It is the mean of the middle fifth, of logarithms. A median jumps where a host becomes likelier than a slow GPU.

    Args:
        busy_s: The GPU's own time of each step, as predicted.
        step_s: The known time of each step.
        kernel_count: Of each step.
        doubt: What is expected of hosts.
    """
    weights = _weights(busy_s, step_s, kernel_count, doubt)
    ends = np.clip(weights.cumsum(axis=1) / weights.sum(axis=1, keepdims=True), *_MIDDLE)
    middle = np.diff(ends, axis=1, prepend=_MIDDLE[0])
    return np.asarray(np.exp(middle @ _LOG_GPU_SHARE / (_MIDDLE[1] - _MIDDLE[0])))


def gpu_bound_probability(
    busy_s: FloatArray, step_s: FloatArray, kernel_count: FloatArray, doubt: HostUncertainty
) -> FloatArray:
    """Return how likely it is, 0 to 1, that the GPU takes longer than the host in each step; arguments as above."""
    weights = _weights(busy_s, step_s, kernel_count, doubt)
    return np.asarray(weights[:, _RATIOS < 0].sum(axis=1) / weights.sum(axis=1))


def _weights(busy_s: FloatArray, step_s: FloatArray, kernel_count: FloatArray, doubt: HostUncertainty) -> FloatArray:
    """Return the weight of each ratio, one row for each step; the largest is 1."""
    busy_s, launches_s = np.maximum(busy_s, _LEAST_S), np.maximum(kernel_count * doubt.launch_s, _LEAST_S)
    own = (_LOG_GPU_SHARE + np.log(step_s / busy_s)[:, np.newaxis]) / doubt.own
    host = (_LOG_HOST_SHARE + np.log(step_s / launches_s)[:, np.newaxis]) / doubt.host
    against = own**2 + np.minimum(host, MAX_HOST_DEVIATION) ** 2
    # Logarithms of a log-normal density, from which the largest is taken so that none underflows for all ratios.
    weights: FloatArray = np.exp(-_HALF * (against - against.min(axis=1, keepdims=True)))
    return weights


MAX_STEP_GAPS = 2.0
"""Of 0 to 16, the one that did best on Lucid's open families, and as well as others on MISO's."""
ODDS_FACTOR = float(np.exp(NINETY_PERCENT * 0.5))
"""How far the odds lie beyond either end at most, in 9 of 10 jobs; a judgement, as nothing was fitted."""


class StepAccount(NamedTuple):
    """One step as predicted, seconds, one entry per GPU: kernels run; the step; the gaps that a usual host adds."""

    busy_s: FloatArray
    step_s: FloatArray
    gaps_s: FloatArray

    @property
    def usual_s(self) -> FloatArray:
        """Return the step and its gaps."""
        return self.step_s + self.gaps_s


def utilizations(known: float, there: WorkloadAnalysis, here: WorkloadAnalysis, gpus: list[Gpu]) -> list[Interval]:
    """Return the GPU utilization of *here* on each of *gpus*.

    Args:
        known: The GPU utilization of *there* on each of them, above 0 and at most 1.
        there: The same job at another batch size.
        here: The job to predict.
        gpus: Whole GPUs.
    """
    growth = here.workload.batch_size / there.workload.batch_size
    accounts = step_account(there, gpus), step_account(here, gpus)

    # nvidia-smi rounds: 100 % does not say that a host needs no time at all.
    knowns = known, min(known, GREATEST_SHARE)
    ends = np.sort(
        [utilization_at_batch(one, *accounts, growth, most) for one in knowns for most in (0.0, np.inf)], axis=0
    )

    values = utilization_at_batch(known, *accounts, growth, MAX_STEP_GAPS)
    lows, highs = (
        ends[0] / (ends[0] + (1.0 - ends[0]) * ODDS_FACTOR),
        ends[-1] * ODDS_FACTOR / (ends[-1] * ODDS_FACTOR + 1.0 - ends[-1]),
    )
    rows = zip(values.tolist(), lows.tolist(), highs.tolist(), strict=True)
    return [Interval(value=value, low=low, high=high) for value, low, high in rows]


def step_account(analysis: WorkloadAnalysis, gpus: list[Gpu]) -> StepAccount:
    """Return the account of *analysis* on *gpus*."""
    timing = analysis.timing(gpus)
    gaps_s = np.array([activity.gaps_s for activity in analysis.activity(gpus)])
    return StepAccount(timing.busy_s, timing.step_s, gaps_s)


def utilization_at_batch(
    known: float, there: StepAccount, here: StepAccount, growth: float, most_gaps: float
) -> FloatArray:
    """Return the utilization, one entry per GPU.

    A host that is faster than a usual one leaves a smaller part of the gaps at any batch, and waits for nothing.

    Args:
        known: The utilization of *there*.
        there: The account at the batch size that *known* is of.
        here: The account at the batch size to predict.
        growth: The batch size to predict, over the other.
        most_gaps: The wait of each step is at most so many times the gaps; what is beyond grows with the batch.
    """
    observed_s = there.busy_s / max(known, LEAST_SHARE)
    wait_s = np.maximum(observed_s - there.usual_s, 0.0)

    # What waits in each step is the same at any batch; the rest is data, so much for each sample.
    of_step_s = np.minimum(wait_s, most_gaps * there.gaps_s) if np.isfinite(most_gaps) else wait_s

    # A host that is faster than a usual one leaves this part of the gaps.
    idle = (observed_s - there.busy_s) / np.maximum(there.usual_s - there.busy_s, 1e-12)
    usual_s = here.busy_s + (here.usual_s - here.busy_s) * np.minimum(idle, 1.0)
    shares = here.busy_s / np.maximum(usual_s + of_step_s + (wait_s - of_step_s) * growth, 1e-12)
    return np.asarray(np.clip(shares, LEAST_SHARE, max(GREATEST_SHARE, known)))
