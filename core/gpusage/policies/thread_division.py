"""How jobs on one GPU divide its threads: so that the one that is slowed most is slowed least (max-min fairness).

Source:
    KACE (Han et al., SoCC 2024) names this division as what remains to be done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpusage_hooks.errors import RequestError
from gpusage_hooks.units import WHOLE_PERCENT

STEP_PERCENT = 5


def percents(jobs: int) -> tuple[int, ...]:
    """Return the parts that one of this many jobs may have: each other one has `STEP_PERCENT` at least."""
    return tuple(range(STEP_PERCENT, WHOLE_PERCENT - STEP_PERCENT * (jobs - 1) + 1, STEP_PERCENT))


def max_min(slowdowns: Sequence[Mapping[int, float]]) -> tuple[int, ...]:
    """Return each job's percentage of the threads; together they are at most 100.

    Args:
        slowdowns: For each job, its step time on a part of the GPU against that on the whole, by percentage.

    Raises:
        RequestError: There are more jobs than parts.
    """
    if len(slowdowns) * STEP_PERCENT > WHOLE_PERCENT:
        most = WHOLE_PERCENT // STEP_PERCENT
        message = f"Jobs on one GPU must be at most {most}; got {len(slowdowns)}. Name fewer."
        raise RequestError(message)
    parts: tuple[int, ...] = ()
    for limit in sorted({slowdown for each in slowdowns for slowdown in each.values()}, reverse=True):
        smaller = tuple(_least(each, limit) for each in slowdowns)
        if None in smaller or sum(part or 0 for part in smaller) > WHOLE_PERCENT:
            break
        parts = tuple(part or 0 for part in smaller)
    return _with_rest(parts, slowdowns)


def _least(slowdowns: Mapping[int, float], limit: float) -> int | None:
    """Return the smallest part on which the job is slowed to at most *limit*."""
    return min((part for part, slowdown in slowdowns.items() if slowdown <= limit), default=None)


def _with_rest(parts: tuple[int, ...], slowdowns: Sequence[Mapping[int, float]]) -> tuple[int, ...]:
    """Return *parts* where those that are slowed most have what is left, as far as it helps them."""
    percents = list(parts)
    for job in sorted(range(len(percents)), key=lambda one: -slowdowns[one][percents[one]]):
        within = [
            part for part in slowdowns[job] if percents[job] <= part <= percents[job] + WHOLE_PERCENT - sum(percents)
        ]
        percents[job] = min(within, key=lambda part, job=job: (slowdowns[job][part], part))  # type: ignore[misc]
    return tuple(percents)
