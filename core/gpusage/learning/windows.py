"""The middle of a few runs, robustly: one strange run moves it little, and few runs leave a wide interval."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, hypot, log, sqrt
from statistics import median

from gpusage.predictors.learned.intervals import NINETY_PERCENT
from gpusage_hooks.types import Interval

RUN_DEVIATION = 0.08
"""Standard deviation of one run's logarithm against the job's own middle: repeated runs of one job in
public tables differ by 5 to 10 %."""
JOB_DEVIATION = 0.05
"""What is left however many runs there were: the next one may be on another node, with other files."""
_NORMAL = 1.4826
"""Standard deviations of a normal distribution in its median absolute deviation."""


def middle(values: Sequence[float]) -> Interval:
    """Return the median of *values*, each above 0, with the ends between which the next run's should lie."""
    logs = [log(value) for value in values]
    center = median(logs)
    scattered = _NORMAL * median(abs(value - center) for value in logs)
    each = max(RUN_DEVIATION, scattered)
    spread = NINETY_PERCENT * hypot(JOB_DEVIATION, each, each / sqrt(len(logs)))
    return Interval(value=exp(center), low=exp(center - spread), high=exp(center + spread))


def at_most_one(interval: Interval) -> Interval:
    """Return *interval* with no end above 1."""
    return Interval(value=min(interval.value, 1.0), low=min(interval.low, 1.0), high=min(interval.high, 1.0))
