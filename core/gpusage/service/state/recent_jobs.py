"""Recent jobs that compete for fast GPUs; a new job's generation is chosen by its gain compared with theirs.

Each user counts once, by the newest such job: otherwise many jobs of one user, which need never run, would send
everybody else's to slower GPUs (docs/decisions/experience.md). Any thread may remember and ask.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from gpusage.decisions.outcome import Outcome

REMEMBERED_JOBS = 64


class RecentJobs:
    """Seconds per step on each GPU type, of recent jobs that may choose among them, by manager."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, Mapping[str, float]]] = {}
        self._lock = threading.Lock()

    def remember(self, outcome: Outcome | None, fields: Mapping[str, str]) -> None:
        """Count a job among them, where it may choose.

        Args:
            outcome: Its own, or one that holds for it.
            fields: Of its own submission.
        """
        if outcome is None or outcome.job is None or outcome.is_dry_run or not outcome.decision.step_times_s:
            return
        user = replace(outcome.job.submitter, fields=fields).user
        with self._lock:
            jobs = self._jobs.setdefault(outcome.submission.manager, {})
            jobs.pop(user, None)
            jobs[user] = outcome.decision.step_times_s
            if len(jobs) > REMEMBERED_JOBS:
                del jobs[next(iter(jobs))]

    def of(self, manager: str) -> tuple[Mapping[str, float], ...]:
        """Return what `Cluster.recent_jobs` is for *manager*, oldest first."""
        with self._lock:
            return tuple(self._jobs.get(manager, {}).values())
