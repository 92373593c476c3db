"""How jobs on a GPU divide its threads: the job that is slowed most is slowed least (max-min fairness).

Source:
    KACE (Han et al., SoCC 2024) names this division as what remains to be done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpusage_hooks.errors import RequestError
from gpusage_hooks.units import WHOLE_PERCENT

STEP_PERCENT = 5


def allowed_percents(jobs: int) -> tuple[int, ...]:
    """Return the parts that each of so many jobs may have: every other job has `STEP_PERCENT` at least."""
    return tuple(range(STEP_PERCENT, WHOLE_PERCENT - STEP_PERCENT * (jobs - 1) + 1, STEP_PERCENT))


def max_min_percents(slowdowns: Sequence[Mapping[int, float]]) -> tuple[int, ...]:
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

    # The lowest limit at which all jobs together still fit; each has the smallest part within it.
    parts: list[int] = []
    for limit in sorted({slowdown for each in slowdowns for slowdown in each.values()}, reverse=True):
        smallest = [min((part for part, cost in each.items() if cost <= limit), default=None) for each in slowdowns]
        enough = [part for part in smallest if part is not None]
        if len(enough) < len(slowdowns) or sum(enough) > WHOLE_PERCENT:
            break
        parts = enough

    # The jobs that are slowed most have the rest, as far as it helps them.
    for job in sorted(range(len(parts)), key=lambda number: -slowdowns[number][parts[number]]):
        most = parts[job] + WHOLE_PERCENT - sum(parts)
        within = ((slowdown, part) for part, slowdown in slowdowns[job].items() if parts[job] <= part <= most)
        _, parts[job] = min(within)
    return tuple(parts)
