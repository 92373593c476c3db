"""Adds up each day once, when its runs are known, so that a report on a month reads a row a day.

Invariants:

1. A day is added up from `SETTLED_S` after its end. A run that is recorded later makes its day be added up again.
2. No answer to a job waits for it for long: a thread of its own, which rests between chunks of runs.
3. Of several daemons on one store, whichever comes last has written a day; all write the same, but for the accounting.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import msgspec

from gpusage.decisions.advisor import Advisor
from gpusage.reports.reading import Reader, read_accounting, rules_of
from gpusage.service.learner import smallest_shares
from gpusage.service.periodic_task import PeriodicTask
from gpusage.service.snapshots import State
from gpusage.settings.configuration import Configuration
from gpusage.store.decisions import DecisionStore
from gpusage_hooks.units import DAY_S, HOUR_S

INTERVAL_S = 3600.0
SETTLED_S = 6 * HOUR_S
"""Nodes report a run within minutes, and the accounting knows of its end; late nodes are no rare thing."""
PATIENCE_S = 3 * DAY_S
"""How long a day waits for accounting that does not answer; many sites have none."""
REST_S = 0.1


def reader_of(store: DecisionStore, advisor: Advisor, configuration: Configuration) -> Reader:
    """Return a reader of *store* by the site's rules and the smallest shares of the last week."""
    return Reader(
        store=store,
        rules=replace(rules_of(configuration, advisor.catalogue), smallest_shares=smallest_shares(store, time.time())),
        accounting=lambda since_s, until_s: read_accounting(since_s, until_s, advisor),
    )


class DailyReports(PeriodicTask):
    """Adds up the days of the store that have no report yet.

    Args:
        state: Has the managers and the configuration.
        open_store: Opens the store, in this thread.
    """

    runs_at_start = True  # an upgrade or a long pause may have left many days

    def __init__(self, state: State, open_store: Callable[[], DecisionStore]) -> None:
        super().__init__("days", "the days of the store cannot be added up")
        self._state = state
        self._open_store = open_store

    def execute(self) -> None:
        """Add up every day that is due, the oldest first."""
        snapshot, now_s = self._state.snapshot, time.time()
        advisor, configuration = snapshot.advisor, snapshot.configuration
        keep_s = configuration.store.keep_days * DAY_S or now_s
        failure: Exception | None = None
        with closing(self._open_store()) as store:
            reader = replace(reader_of(store, advisor, configuration), see=lambda _: self._stop.wait(REST_S))
            for day_s in store.missing_days(now_s - SETTLED_S, reader.form):
                # Of an older day some runs are deleted already.
                if day_s < now_s - keep_s or self._stop.is_set():
                    continue
                try:
                    store.claim_day(day_s)
                    part, _ = reader.read_span(day_s, day_s + DAY_S)
                    if not part.unaccounted or day_s < now_s - PATIENCE_S:
                        store.record_day(day_s, msgspec.json.encode(part), reader.form)
                except Exception as error:
                    failure = error
        if failure:
            raise failure

    def interval_s(self) -> float:
        """Return how often days are looked for."""
        return INTERVAL_S
