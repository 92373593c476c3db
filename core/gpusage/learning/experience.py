"""What the earlier runs of one job showed: runs -> one experience.

Invariants:

1. Only the newest runs count, and of each kind of run the same number, so that no kind drives another out: what is
   decided by the experience of one kind does not take that experience away.
2. Everything is absolute, observed on a GPU; nothing depends on what was predicted, so nothing feeds back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from statistics import median

from gpusage.learning.findings import WHOLE_PERCENT, Experience, Place
from gpusage.learning.runs import Run
from gpusage.learning.windows import at_most_one, middle
from gpusage_hooks.types import Interval

KEPT_RUNS = 12
"""Of one kind."""
LEAST_TIMED = 2
"""Whole runs whose duration says how long the job takes."""
LARGEST_SPREAD = 1.15
"""Between the longest and the shortest of them; beyond it the job does not do the same each time."""
LARGEST_SLOWDOWN = 4.0
MEMORY_MARGINS = (1.25, 1.1)
"""How much more the next run may take than any before: after one run, and after several."""
LACKING_MARGIN = 1.25
"""How much more than what it died of a job is taken to need at least."""


def experience(runs: Sequence[Run]) -> Experience:
    """Return what *runs*, oldest first, showed."""
    utilizations = _newest(runs, lambda run: run.utilization)
    durations = _newest(runs, lambda run: run.duration_s)
    return Experience(
        run_count=min(len(runs), KEPT_RUNS),
        utilization={place: at_most_one(middle(values)) for place, values in utilizations.items()},
        utilization_runs={place: len(values) for place, values in utilizations.items()},
        slowdown=_slowdowns(durations),
        memory_bytes=_memory(runs),
    )


def slowdown_of(run: Run, runs: Iterable[Run]) -> float | None:
    """Return how many times as long *run* took as whole runs among *runs* on that GPU; ``None`` where none tell."""
    if run.duration_s is None:
        return None
    durations = _newest(runs, lambda each: each.duration_s)
    return _against(run.duration_s, durations.get((run.gpu, WHOLE_PERCENT), ()))


def _newest(runs: Iterable[Run], figure: Callable[[Run], float | None]) -> Mapping[Place, Sequence[float]]:
    """Return the newest values of *figure* by GPU and percentage."""
    values: dict[Place, list[float]] = defaultdict(list)
    for run in runs:
        value = figure(run)
        if value is not None:
            values[run.gpu, run.share_percent].append(value)
    return {place: each[-KEPT_RUNS:] for place, each in values.items()}


def _slowdowns(durations: Mapping[Place, Sequence[float]]) -> Mapping[Place, float]:
    slowdowns = {
        (gpu, percent): _against(median(values), durations.get((gpu, WHOLE_PERCENT), ()))
        for (gpu, percent), values in durations.items()
        if percent < WHOLE_PERCENT
    }
    return {place: value for place, value in slowdowns.items() if value is not None}


def _against(duration_s: float, whole_s: Sequence[float]) -> float | None:
    """Return *duration_s* against the middle of *whole_s*, where these are enough and agree."""
    if len(whole_s) < LEAST_TIMED or not 0 < max(whole_s) <= LARGEST_SPREAD * min(whole_s):
        return None
    return min(max(duration_s / median(whole_s), 1.0), LARGEST_SLOWDOWN)


def _memory(runs: Sequence[Run]) -> Interval | None:
    """Return the peak of *runs* and how far the next may go: never beyond a cap under which one did its work."""
    served = [run for run in runs if run.memory_bytes and not run.lacked_memory][-KEPT_RUNS:]
    lacking = [run.memory_bytes or run.promised_bytes or 0.0 for run in runs if run.lacked_memory][-KEPT_RUNS:]
    least = LACKING_MARGIN * max(lacking, default=0.0)
    if not served:
        return Interval(value=least, low=least, high=LACKING_MARGIN * least) if least else None
    peaks = [float(run.memory_bytes or 0) for run in served]
    margin = MEMORY_MARGINS[len(peaks) > 1]
    ends = (min(margin * peak, run.memory_limit_bytes or inf) for run, peak in zip(served, peaks, strict=True))
    return Interval(value=median(peaks), low=min(peaks), high=max(*ends, *peaks, least))
