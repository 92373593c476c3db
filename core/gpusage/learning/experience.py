"""What the earlier runs of one job showed: runs -> one experience.

Invariants:

1. Only the newest runs count, and of each kind of run the same number, so that no kind drives another out: what is
   decided by the experience of one kind does not take that experience away.
2. Everything is absolute, observed on a GPU; nothing depends on what was predicted, so nothing feeds back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from statistics import median

from gpusage.learning.findings import Experience, Place
from gpusage.learning.runs import Run
from gpusage.learning.windows import at_most_one, middle
from gpusage_hooks.types import Interval
from gpusage_hooks.units import WHOLE_PERCENT

KEPT_RUNS = 12
"""Of one kind."""
LEAST_TIMED = 4
"""Runs, on the share and on the whole GPU together, whose durations say how much longer the share takes."""
LARGEST_SPREAD = 1.25
"""Between the longest and the shortest of either; beyond it the job does not do the same each time."""
LARGEST_SLOWDOWN = 4.0
LEFT_MARGIN = 1.1
"""How much dearer a share counts that was left for the whole GPU after it was known how long it takes."""
REMEMBERED_RUNS = 50
"""On one share, or on the whole GPU: bounds what learning takes."""
FULL, NOT_FULL, LEAST_FULL = 0.95, 0.8, 2
"""A share that is this busy is full; one that can be at most so busy is not; so many runs show a change."""
CHANGED = 0.2
"""Whole runs that differ by less show that there was none."""
MEMORY_MARGINS = (1.25, 1.1)
"""How much more the next run may take than any before: after one run, and after several."""
LACKING_MARGIN = 1.25
"""How much more than what it died of a job is taken to need at least."""


def remembered(runs: Sequence[Run]) -> list[Run]:
    """Return the newest of *runs*, oldest first: of each GPU and percentage as many."""
    counts: Counter[Place] = Counter()
    newest = []
    for run in reversed(runs):
        counts[run.gpu, run.share_percent] += 1
        if counts[run.gpu, run.share_percent] <= REMEMBERED_RUNS:
            newest.append(run)
    return newest[::-1]


def experience(runs: Sequence[Run]) -> Experience:
    """Return what *runs*, oldest first, showed."""
    runs = _since_change(runs)
    utilizations = _newest(runs, lambda run: run.utilization)
    return Experience(
        run_count=min(len(runs), KEPT_RUNS),
        utilization={place: at_most_one(middle(values)) for place, values in utilizations.items()},
        utilization_runs={place: len(values) for place, values in utilizations.items()},
        slowdown=_slowdowns(runs),
        memory_bytes=_memory(runs),
    )


def _since_change(runs: Sequence[Run]) -> Sequence[Run]:
    """Return *runs* without whole ones from before the job changed: later its share was full, and could not have been.

    A share makes the GPU's own time at most as many times as long as it has fewer SMs. Where whole runs show later that
    nothing has changed, this share does make it longer, and that is no reason to forget anything.
    """
    full: list[int] = []
    for index, run in enumerate(runs):
        usual = _usual(runs[:index]) if run.share_percent < WHOLE_PERCENT and (run.utilization or 0) >= FULL else None
        if usual is None or usual * WHOLE_PERCENT / run.share_percent >= NOT_FULL:
            continue
        full.append(index)
        if len(full) == LEAST_FULL:
            later = _usual(runs[index:])
            if later is not None and abs(later / usual - 1) < CHANGED:
                return runs
            return [*(run for run in runs[: full[0]] if run.share_percent < WHOLE_PERCENT), *runs[full[0] :]]
    return runs


def _usual(runs: Sequence[Run]) -> float | None:
    """Return the middle of the utilizations of the newest whole runs among *runs*."""
    whole = [run.utilization for run in runs if run.utilization and run.share_percent == WHOLE_PERCENT]
    return median(whole[-KEPT_RUNS:]) if whole else None


def slowdown_of(run: Run, runs: Iterable[Run]) -> float | None:
    """Return how many times as long *run* took as whole runs among *runs* on that GPU; ``None`` where none tell."""
    if run.duration_s is None:
        return None
    durations = _newest(runs, lambda each: each.duration_s)
    shared, whole = (durations.get((run.gpu, percent), ()) for percent in (run.share_percent, WHOLE_PERCENT))
    return _against(run.duration_s, shared, whole)


def _newest(runs: Iterable[Run], figure: Callable[[Run], float | None]) -> Mapping[Place, Sequence[float]]:
    """Return the newest values of *figure* by GPU and percentage."""
    values: dict[Place, list[float]] = defaultdict(list)
    for run in runs:
        value = figure(run)
        if value is not None:
            values[run.gpu, run.share_percent].append(value)
    return {place: each[-KEPT_RUNS:] for place, each in values.items()}


def _slowdowns(runs: Iterable[Run]) -> Mapping[Place, float]:
    """Return how many times as long each share took, by the worst that it ever looked: dear once is dear for good.

    Else a share that is at the site's limit would be taken and left by the chance of a few runs, on it or on the whole
    GPU. One that was left counts as a little dearer than it looked, so that it is not taken again by a hair.
    """
    durations: dict[Place, list[float]] = defaultdict(list)
    worst: dict[Place, float] = {}
    left: set[Place] = set()
    last: Place | None = None
    for run in runs:
        if run.duration_s is None:
            continue
        here = run.gpu, run.share_percent
        if last in worst and here == (run.gpu, WHOLE_PERCENT):
            left.add(last)
        durations[here].append(run.duration_s)
        for place in [place for place in durations if place[0] == run.gpu and place[1] < WHOLE_PERCENT]:
            shared_s, whole_s = (durations[each][-KEPT_RUNS:] for each in (place, (run.gpu, WHOLE_PERCENT)))
            slowdown = _against(median(shared_s), shared_s, whole_s)
            if slowdown is not None:
                worst[place] = max(slowdown, worst.get(place, slowdown))
        last = here
    return {place: slowdown * LEFT_MARGIN ** (place in left) for place, slowdown in worst.items()}


def _against(duration_s: float, shared_s: Sequence[float], whole_s: Sequence[float]) -> float | None:
    """Return *duration_s* against the middle of *whole_s*, where the durations are enough and agree."""
    if len(shared_s) + len(whole_s) < LEAST_TIMED or not (_agree(shared_s) and _agree(whole_s)):
        return None
    return min(max(duration_s / median(whole_s), 1.0), LARGEST_SLOWDOWN)


def _agree(durations_s: Sequence[float]) -> bool:
    return bool(durations_s) and 0 < max(durations_s) <= LARGEST_SPREAD * min(durations_s)


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
