"""Keeps what jobs really did: asks the managers for it, lets plugins hear of it, and writes it into the store.

Invariants:

1. A thread and a connection of its own: no answer to a job waits for usage.
2. Of a run that is told again, nobody hears again while this process lives; the store has each run once in any case.
3. What could not be written is asked for and written again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import compress
from typing import Any

from gpusage.plain_text import visible
from gpusage.service.metrics.run_counter import count_runs, is_new
from gpusage.service.state import State
from gpusage.service.tallies import RunTally
from gpusage.service.usage_keeping import keep_usage
from gpusage.service.watch import Watch
from gpusage.store.decisions import DecisionStore
from gpusage_hooks.types import Usage

LOOKS_PER_REFRESH = 4
"""Refreshes between two questions for usage: it can wait, and letters stay for long."""
_log = logging.getLogger(__name__)
_Run = tuple[str, str, float]


class UsageWatch(Watch):
    """Collects usage, in a thread of its own.

    Args:
        state: Whose managers to ask.
        open_store: Opens the store, in the thread that writes.
        tally: Counts the runs; ``None`` where nobody asks for metrics.
    """

    def __init__(self, state: State, open_store: Callable[[], DecisionStore], tally: RunTally | None = None) -> None:
        super().__init__("usage", "what jobs really did cannot be collected")
        self._tally = tally
        self._state = state
        self._open_store = open_store
        self._store: DecisionStore | None = None
        self._known: set[_Run] = set()
        self._kept = 0

    def status(self) -> dict[str, Any]:
        """Return how many runs were kept, and what is wrong."""
        return {"kept": self._kept, "error": self.error}

    def _look(self) -> None:
        snapshot, told = self._state.snapshot, list[Usage]()
        for manager, cluster in snapshot.clusters.items():
            if self._tally is not None:
                self._tally.expect(manager, [pool.gpu for pool in cluster.pools if pool.gpu])
            told += snapshot.advisor.hooks.collect_usage(manager, snapshot.advisor.context(manager)) or ()
        self._keep([usage for usage in told if _key(usage) not in self._known])
        self._known = {_key(usage) for usage in told}

    def _keep(self, usages: list[Usage]) -> None:
        if not usages:
            return
        self._store = self._store or self._open_store()
        are_new = [self._tally is not None and is_new(self._store, usage) for usage in usages]
        kept = keep_usage(usages, self._store, self._state.snapshot.advisor.hooks)
        self._kept += len(kept)
        if self._tally is not None:
            least_s = self._state.snapshot.configuration.learning.least_sampled_s
            count_runs(self._tally, self._store, [*compress(kept, are_new)], least_s)
        for usage in kept:
            _log.info("%s", log_line(usage))

    def _pause_s(self) -> float:
        return max(1.0, LOOKS_PER_REFRESH * self._state.snapshot.configuration.daemon.refresh_s)

    def _run(self) -> None:
        super()._run()
        if self._store is not None:
            self._store.close()


def log_line(usage: Usage) -> str:
    """Return *usage* on one line."""
    used = "utilization unknown" if usage.gpu_utilization is None else f"utilization {usage.gpu_utilization:.0%}"
    return visible(f"{usage.manager} job {usage.job_id} of {usage.user}: {usage.outcome} | {used}")


def _key(usage: Usage) -> _Run:
    return usage.manager, usage.job_id, usage.started_at_s
