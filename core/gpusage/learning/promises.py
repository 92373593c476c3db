"""Whether what was predicted of a run came true, and when a site should stop to act on such predictions for a while.

Invariants:

1. The state changes at most once in `LEAST_MISSES` promises, and goes back only after `WINDOW` more: it cannot flutter.
2. While nothing is enforced whole runs go on telling whether the share would have been right, so that trust can return.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from gpusage.learning.experience import slowdown_of
from gpusage.learning.runs import Run
from gpusage_hooks.units import WHOLE_PERCENT

WINDOW = 12
LEAST_MISSES = 5
"""Of a window. A tenth of the promises may be broken; then so many are, by chance, in one window of 230."""
TRUSTED_MISSES = 1
"""Of a whole window, at most, for trust to return."""
PARTNERS = 1.12
"""How many times as long a step may take beside partners, where shares are capped (docs/decisions/0023)."""
TIMING = 1.1
"""Durations of one job differ by as much for other reasons."""
WAITS_FOR_HOST = 0.9
"""A job whose share is idle for a tenth of the time is not slowed down by it."""


def is_kept(run: Run, runs: Sequence[Run]) -> bool | None:
    """Tell whether the promise to *run* was kept, or would have been; ``None`` where nothing tells.

    Args:
        run: One run.
        runs: Those of the same job.
    """
    if run.promised is None:
        return None
    if run.lacked_memory or (run.promised_bytes and (run.memory_bytes or 0) > run.promised_bytes):
        return False
    if run.share_percent < WHOLE_PERCENT:
        return _shared_kept(run, run.promised, slowdown_of(run, runs))
    if run.utilization is None or run.utilization_high is None:
        return None
    return run.utilization <= run.utilization_high


def is_mistrusted(kept: Iterable[bool]) -> bool:
    """Tell whether after the promises *kept*, oldest first, no share should be enforced for now."""
    mistrusted, window = False, deque[bool](maxlen=WINDOW)
    for each in kept:
        window.append(each)
        misses = window.count(False)
        turns = len(window) == WINDOW and misses <= TRUSTED_MISSES if mistrusted else misses >= LEAST_MISSES
        if turns:
            mistrusted = not mistrusted
            window.clear()
    return mistrusted


def _shared_kept(run: Run, promised: float, slowdown: float | None) -> bool | None:
    if slowdown is not None:
        return slowdown <= promised * PARTNERS * TIMING
    return True if run.utilization is not None and run.utilization < WAITS_FOR_HOST else None
