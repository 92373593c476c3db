"""What other users' runs show of a job: nothing that two of them could forge, nor what its graph rules out.

Invariants:

1. Fewer than `LEAST_USERS` others show nothing. Each counts once, however many runs there are.
2. The point and both ends stay within the interval that the graph alone predicts.
3. Two dishonest users move the point no further than the graph and an honest one, and the upper end not below an
   honest one's.
4. They show how busy a GPU is, and nothing else: the memory that a job dies without is that of its user's own runs.

docs/decisions/experience.md says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from gpusage_hooks.types import Interval

LEAST_USERS = 3
"""A median of three withstands one who lies; two can always agree (docs/decisions/experience.md)."""
MOST_USERS = 12
"""The newest of them; bounds what a decision takes."""


def narrowed(predicted: Interval, observed: Sequence[Interval]) -> Interval | None:
    """Return *predicted*, narrowed by several users' runs and with its point moved; ``None`` where users are too few.

    Args:
        predicted: By the graph alone.
        observed: What each user's runs showed; one for each user.
    """
    if len(observed) < LEAST_USERS:
        return None
    low, high = min(each.low for each in observed), max(each.high for each in observed)
    point = _supported(predicted.value, sorted(each.value for each in observed))
    low, point, high = (min(max(end, predicted.low), predicted.high) for end in (low, point, high))
    return Interval(value=point, low=low, high=high)


def _supported(predicted: float, values: Sequence[float]) -> float:
    """Return the median of *values*, in order, but no further from *predicted* than `LEAST_USERS` of them lie."""
    middle = median(values)
    if middle < predicted:
        return min(predicted, max(middle, values[LEAST_USERS - 1]))
    return max(predicted, min(middle, values[-LEAST_USERS]))
