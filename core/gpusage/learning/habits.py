"""How busy a site's jobs were against what their graphs said, so that a job that never ran is judged by its kind.

Invariants:

1. Each job counts once, however often it ran: what is asked about is one that never did.
2. A habit is between `BOUNDS`, and holds back where jobs are few.
3. Its upper end is the busiest job of the kind that was seen: a share is promised only where it would do for that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from statistics import median

from gpusage.learning.findings import Habit
from gpusage.learning.runs import Run
from gpusage_hooks.types import Interval
from gpusage_hooks.units import WHOLE_PERCENT

BOUNDS = (0.2, 1.25)
"""Of observed over predicted utilization."""
LEAST_JOBS = 3
HOLDING_BACK = 2.0
"""So many jobs that were just as predicted are taken to have been seen as well."""


def habit(jobs: Sequence[Sequence[Run]]) -> Habit | None:
    """Return how busy *jobs*, each given by its runs, were; ``None`` where too few tell."""
    ratios = [ratio for ratio in map(habit_ratio, jobs) if ratio is not None]
    if len(ratios) < LEAST_JOBS:
        return None
    value = exp(len(ratios) / (len(ratios) + HOLDING_BACK) * median(map(log, ratios)))
    high, low = max(*ratios, value), min(*ratios, value)
    return Habit(job_count=len(ratios), ratio=Interval(value=value, low=low, high=high))


def habit_ratio(runs: Sequence[Run]) -> float | None:
    """Return observed over predicted utilization of the runs of one job on whole GPUs; ``None`` where none tell."""
    ratios = [
        run.utilization / run.predicted_utilization
        for run in runs
        if run.utilization and run.predicted_utilization and run.share_percent == WHOLE_PERCENT
    ]
    least, most = BOUNDS
    return min(max(median(ratios), least), most) if ratios else None
