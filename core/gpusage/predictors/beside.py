"""What partners add to the price of a share: jobs on the same GPU, each limited to its part of the threads.

Jobs share memory bandwidth and cache whatever the percentages are. The partners' cost grows with their number, and it
slows only the GPU's own time: a job that waits for its host pays almost nothing, so a price near 1 hardly grows.
"""

from __future__ import annotations

from math import exp, hypot, log
from typing import NamedTuple

from gpusage.predictors.learned.artifacts import pretrained
from gpusage.predictors.times.host import SHARPNESS
from gpusage_hooks.types import Interval


class Partners(NamedTuple):
    """Exponents: a job's own time grows by this power of the number of jobs on its GPU, beside average and bad ones."""

    average: float
    bad: float


def beside(price: Interval, partners: int) -> Interval:
    """Return the slowdown of a job that costs *price* alone on its share, beside so many *partners*.

    Args:
        price: The slowdown alone on the share, at least 1.
        partners: The other jobs on the GPU; all percentages together are 100 at most.

    Returns:
        The point is beside average partners, the lower end beside partners that do nothing, the upper end beside bad
        ones. Measured were two to five equal processes without percentages (ParvaGPU), and two jobs with 50 % each.
    """
    learned = pretrained().slowdown.partners
    return with_partners(price, partners + 1, Partners(average=learned["average"], bad=learned["bad"]))


def with_partners(price: Interval, jobs: int, learned: Partners) -> Interval:
    """Return *price* where *jobs* run on the GPU, as *learned* has it."""
    value = price.value * _factor(price.value, jobs, learned.average)
    bad = _factor(price.high, jobs, learned.bad) / _factor(price.value, jobs, learned.average)
    high = value * exp(hypot(log(price.high / price.value), log(max(bad, 1.0))))
    return Interval(value=value, low=price.low, high=high)


def _factor(price: float, jobs: int, power: float) -> float:
    """Return how much longer a step takes among *jobs*; the part of it that the GPU decides follows from its price."""
    return float(jobs ** (power * (1.0 - price**-SHARPNESS)))
