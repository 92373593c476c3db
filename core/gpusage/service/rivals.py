"""The jobs of late that compete for fast GPUs; a new job's generation is chosen by what it gains against them.

Any thread may remember and ask.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from gpusage.verdict import Verdict

REMEMBERED_RIVALS = 64
REMEMBERED_OF_ONE = 8
"""Of one user: else many jobs, which need never run, would send everybody else's to slower GPUs."""


class Rivals:
    """Seconds per step on each GPU type, of the jobs of late that may choose among them, by manager."""

    def __init__(self) -> None:
        self._rivals: dict[str, deque[tuple[str, Mapping[str, float]]]] = {}
        self._lock = threading.Lock()

    def remember(self, verdict: Verdict | None, fields: Mapping[str, str]) -> None:
        """Count a job among them, where it may choose.

        Args:
            verdict: Its own, or one that holds for it.
            fields: Of its own submission.
        """
        if verdict is None or verdict.job is None or verdict.is_dry_run or not verdict.decision.step_times_s:
            return
        user = replace(verdict.job.submitter, fields=fields).user
        with self._lock:
            rivals = self._rivals.setdefault(verdict.submission.manager, deque(maxlen=REMEMBERED_RIVALS))
            own = [rival for rival in rivals if rival[0] == user]
            if len(own) == REMEMBERED_OF_ONE:
                rivals.remove(own[0])
            rivals.append((user, verdict.decision.step_times_s))

    def of(self, manager: str) -> tuple[Mapping[str, float], ...]:
        """Return what `Cluster.rivals` is for *manager*, oldest first."""
        with self._lock:
            return tuple(times_s for _, times_s in self._rivals.get(manager, ()))
