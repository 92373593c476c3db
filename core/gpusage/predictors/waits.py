"""A utilization that is known at one batch size -> the utilization at another.

What a step takes beyond the account of kernels and gaps, the GPU waited. A part of that is the host's work for each
step, the same at any batch; the rest is data, so much for each sample. One figure tells their sum alone, so the part of
each step is taken to be at most `MOST_GAPS` times the gaps that a usual host leaves. The ends are that all of the wait
is of each step, or none, and that the account misses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpusage.predictors.activity.activities import GREATEST_SHARE, LEAST_SHARE
from gpusage.predictors.learned.arrays import FloatArray
from gpusage.predictors.learned.intervals import NINETY_PERCENT
from gpusage.predictors.question import Question
from gpusage_hooks.types import Gpu, Interval

MOST_GAPS = 2.0
"""Of 0 to 16, the one that did best on Lucid's open families, and as well as others on MISO's (decision 49)."""
MISS = float(np.exp(NINETY_PERCENT * 0.5))
"""How far the odds lie beyond either end at most, in 9 of 10 jobs; a judgement, as nothing was fitted."""


class Account(NamedTuple):
    """One step as predicted, seconds, one entry per GPU: kernels run; the step; the gaps of a usual host beside it."""

    busy_s: FloatArray
    step_s: FloatArray
    gaps_s: FloatArray

    @property
    def usual_s(self) -> FloatArray:
        """Return the step and its gaps."""
        return self.step_s + self.gaps_s


def utilizations(known: float, there: Question, here: Question, gpus: list[Gpu]) -> list[Interval]:
    """Return the GPU utilization of *here* on each of *gpus*.

    Args:
        known: The GPU utilization of *there* on each of them, above 0 and at most 1.
        there: The same job at another batch size.
        here: What is asked.
        gpus: Whole GPUs.
    """
    growth = here.workload.batch_size / there.workload.batch_size
    accounts = account_of(there, gpus), account_of(here, gpus)
    knowns = known, min(known, GREATEST_SHARE)  # nvidia-smi rounds: 100 % does not say that a host needs no time at all
    ends = np.sort([carried(one, *accounts, growth, most) for one in knowns for most in (0.0, np.inf)], axis=0)
    values = carried(known, *accounts, growth, MOST_GAPS)
    lows, highs = ends[0] / (ends[0] + (1.0 - ends[0]) * MISS), ends[-1] * MISS / (ends[-1] * MISS + 1.0 - ends[-1])
    rows = zip(values.tolist(), lows.tolist(), highs.tolist(), strict=True)
    return [Interval(value=value, low=low, high=high) for value, low, high in rows]


def account_of(question: Question, gpus: list[Gpu]) -> Account:
    """Return the account of *question* on *gpus*."""
    timing = question.timing(gpus)
    gaps_s = np.array([activity.gaps_s for activity in question.activity(gpus)])
    return Account(timing.busy_s, timing.step_s, gaps_s)


def carried(known: float, there: Account, here: Account, growth: float, most_gaps: float) -> FloatArray:
    """Return the utilization, one entry per GPU.

    A host that is faster than a usual one leaves a smaller part of the gaps at any batch, and waits for nothing.

    Args:
        known: The utilization of *there*.
        there: The account at the batch size that *known* is of.
        here: The account at the one that is asked about.
        growth: The batch size that is asked about, over the other.
        most_gaps: The wait of each step is at most so many times the gaps; what is beyond grows with the batch.
    """
    observed_s = there.busy_s / max(known, LEAST_SHARE)
    wait_s = np.maximum(observed_s - there.usual_s, 0.0)
    of_step_s = np.minimum(wait_s, most_gaps * there.gaps_s) if np.isfinite(most_gaps) else wait_s
    idle = (observed_s - there.busy_s) / np.maximum(there.usual_s - there.busy_s, 1e-12)
    usual_s = here.busy_s + (here.usual_s - here.busy_s) * np.minimum(idle, 1.0)
    shares = here.busy_s / np.maximum(usual_s + of_step_s + (wait_s - of_step_s) * growth, 1e-12)
    return np.asarray(np.clip(shares, LEAST_SHARE, max(GREATEST_SHARE, known)))
