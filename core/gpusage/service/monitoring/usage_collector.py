"""Collects the usage of runs from the managers, passes it to plugins, and writes it into the store.

Invariants:

1. A thread and a connection of its own: no answer to a job waits for usage.
2. A run that is reported again reaches no plugin again while this process lives; the store has each run once.
3. What could not be written is collected and written again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import compress
from typing import Any

from gpusage.boundary.printable_text import visible
from gpusage.service.counters import RunCounters
from gpusage.service.monitoring.run_counter import count_runs, is_new
from gpusage.service.periodic_task import PeriodicTask
from gpusage.service.records.usage import record_usage
from gpusage.service.state.snapshots import State
from gpusage.store.decisions import DecisionStore
from gpusage_hooks.types import Usage

REFRESHES_PER_RUN = 4
"""Of clusters: usage can wait, and the reports of nodes stay for long."""
_log = logging.getLogger(__name__)
_Run = tuple[str, str, float]


class UsageCollector(PeriodicTask):
    """Collects usage, in a thread of its own.

    Args:
        state: Has the managers.
        open_store: Opens the store, in the thread that writes.
        tally: Counts the runs; ``None`` where a site wants no metrics.
    """

    def __init__(self, state: State, open_store: Callable[[], DecisionStore], tally: RunCounters | None = None) -> None:
        super().__init__("usage", "what jobs really did cannot be collected")
        self._tally = tally
        self._state = state
        self._open_store = open_store
        self._store: DecisionStore | None = None
        self._recorded_runs: set[_Run] = set()
        self._recorded_count = 0

    def status(self) -> dict[str, Any]:
        """Return how many runs were recorded, and what is wrong."""
        return {"recorded": self._recorded_count, "error": self.error}

    def _execute(self) -> None:
        snapshot, reported = self._state.snapshot, list[Usage]()
        for manager, cluster in snapshot.clusters.items():
            if self._tally is not None:
                self._tally.expect(manager, [pool.gpu for pool in cluster.pools if pool.gpu])
            reported += snapshot.advisor.hooks.collect_usage(manager, snapshot.advisor.context(manager)) or ()
        self._record([usage for usage in reported if _key(usage) not in self._recorded_runs])
        self._recorded_runs = {_key(usage) for usage in reported}

    def _record(self, usages: list[Usage]) -> None:
        if not usages:
            return
        self._store = self._store or self._open_store()
        are_new = [self._tally is not None and is_new(self._store, usage) for usage in usages]
        recorded = record_usage(usages, self._store, self._state.snapshot.advisor.hooks)
        self._recorded_count += len(recorded)
        if self._tally is not None:
            least_s = self._state.snapshot.configuration.learning.least_sampled_s
            count_runs(self._tally, self._store, [*compress(recorded, are_new)], least_s)
        for usage in recorded:
            _log.info("%s", log_line(usage))

    def _interval_s(self) -> float:
        return max(1.0, REFRESHES_PER_RUN * self._state.snapshot.configuration.daemon.refresh_s)

    def _loop(self) -> None:
        super()._loop()
        if self._store is not None:
            self._store.close()


def log_line(usage: Usage) -> str:
    """Return *usage* on one line."""
    used = "utilization unknown" if usage.gpu_utilization is None else f"utilization {usage.gpu_utilization:.0%}"
    return visible(f"{usage.manager} job {usage.job_id} of {usage.user}: {usage.outcome} | {used}")


def _key(usage: Usage) -> _Run:
    return usage.manager, usage.job_id, usage.started_at_s
