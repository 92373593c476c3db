"""Collects the usage of runs from the managers, passes it to plugins, and writes it into the store.

Invariants:

1. A thread and a connection of its own: no answer to a job waits for usage.
2. A run that is reported again reaches no plugin again while this process lives; the store has each run once.
3. Usage that could not be written is collected and written again.
4. A run is counted once: nodes' reports stay for long, so a restarted daemon collects old runs again, but what the
   store has is not new.
5. Each day the store gets a note of each cluster, its name and the most GPUs that were seen on it: nobody tells later.
   Where that cannot be written, usage still is.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, get_args

from gpusage.boundary.printable_text import visible
from gpusage.experience.finished_jobs import describe_excess, is_of_another_node, is_same_run
from gpusage.reports.accuracy import runs_with_promise
from gpusage.reports.amounts import Amounts, amounts_of, had_share, total
from gpusage.reports.joining import joined
from gpusage.reports.summary import IdleJobs, idle_jobs
from gpusage.service.periodic_task import PeriodicTask
from gpusage.service.recorder import record_usage
from gpusage.service.snapshots import State
from gpusage.store.decisions import DecisionStore, StoreError
from gpusage.store.rows import Observation, UsageQuery
from gpusage_hooks.types import Outcome, Usage
from gpusage_hooks.units import DAY_S

REFRESHES_PER_RUN = 4
"""Of clusters: usage can wait, and the reports of nodes stay for long."""
REPORTED_JOBS_LIMIT = 20
HISTORY_DAYS = 90
HISTORY_RUNS = 1000
"""A promise rests on a user's earlier runs; so many are read."""
_log = logging.getLogger(__name__)
_Run = tuple[str, str, float]


@dataclass(slots=True)
class RunCounters:
    """Counts runs for the metrics; written in the thread that collects usage, read by any.

    Attributes:
        runs: By manager and outcome.
        hours: By GPU, as the node named it.
        promises: To shares that were given: ``fulfilled``, ``broken``, ``unknown``.
        idle: Runs that did nothing for a time, and their GPU hours in it.
    """

    runs: Counter[tuple[str, ...]] = field(default_factory=Counter)
    hours: dict[str, Amounts] = field(default_factory=dict)
    promises: Counter[str] = field(default_factory=Counter)
    idle: IdleJobs = field(default_factory=lambda: idle_jobs([]))

    def expect(self, manager: str, gpus: Iterable[str]) -> None:
        """Begin the series of *manager* at 0: Prometheus does not count a series' first value as an increase."""
        # Each label has to be there before its first run.
        for outcome in get_args(Outcome):
            self.runs[manager, outcome] += 0
        for gpu in gpus:
            self.hours.setdefault(gpu, Amounts())

    def add(self, observed: Observation) -> None:
        """Count one run."""
        usage = observed.usage
        self.runs[usage.manager, usage.outcome] += 1
        self.hours[usage.gpu] = total([self.hours.get(usage.gpu, Amounts()), amounts_of(observed)])
        self.idle = joined([self.idle, idle_jobs([observed])])

    def add_promise(self, *, held: bool | None) -> None:
        """Count one promise; ``None`` where nothing shows whether it was fulfilled."""
        self.promises["unknown" if held is None else "fulfilled" if held else "broken"] += 1


class UsageCollector(PeriodicTask):
    """Collects usage, in a thread of its own.

    Args:
        state: Has the managers.
        store: Used in the thread that writes alone.
        tally: Counts the runs; ``None`` where a site wants no metrics.
    """

    def __init__(self, state: State, store: DecisionStore, tally: RunCounters | None = None) -> None:
        super().__init__("usage", "what jobs really did cannot be collected")
        self._tally = tally
        self._state = state
        self._store = store
        self._recorded_runs: set[_Run] = set()
        self._recorded_count = 0
        self._excesses: dict[_Run, str] = {}
        self._noted: set[tuple[float, str, str, int]] = set()

    def status(self) -> dict[str, Any]:
        """Return how many runs were recorded, which of the last took more than their part, and the last error."""
        excesses = [*dict(self._excesses).values()][:REPORTED_JOBS_LIMIT]
        return {"recorded": self._recorded_count, "excesses": excesses, "error": self.error}

    def execute(self) -> None:
        """Collect the usage of every manager's runs, and write new ones."""
        snapshot, reported, today = self._state.snapshot, list[Usage](), time.time() // DAY_S * DAY_S
        for manager, cluster in snapshot.clusters.items():
            note = today, manager, cluster.name, sum(pool.gpu_count for pool in cluster.pools)
            if note not in self._noted:
                with suppress(StoreError):
                    self._store.note_cluster(*note)
                    self._noted.add(note)
            if self._tally is not None:
                self._tally.expect(manager, [pool.gpu for pool in cluster.pools if pool.gpu])
            reported += snapshot.advisor.hooks.collect_usage(manager, snapshot.advisor.context(manager)) or ()

        usages = [usage for usage in reported if _key(usage) not in self._recorded_runs]
        if usages:
            # Before they are written, because then none is new; counting needs their rows, with the decisions.
            are_new = [self._tally is not None and is_new(self._store, usage) for usage in usages]
            recorded = record_usage(usages, self._store, snapshot.advisor.hooks)
            self._recorded_count += len(recorded)
            if self._tally is not None:
                least_s = snapshot.configuration.learning.least_sampled_s
                count_runs(self._tally, self._store, [*compress(recorded, are_new)], least_s)
            for usage in recorded:
                _log.info("%s", log_line(usage))
                excess = describe_excess(usage)
                if excess:
                    _log.warning("%s", visible(f"{usage.manager} job {usage.job_id} of {usage.user}: {excess}"))
                    # Everybody may ask for the status, so it names no user.
                    self._excesses[_key(usage)] = f"{usage.manager} job {usage.job_id}: {excess}"

        # Only what is still reported: nodes drop old reports, and this must not grow for ever.
        self._recorded_runs = {_key(usage) for usage in reported}
        self._excesses = {key: text for key, text in self._excesses.items() if key in self._recorded_runs}

    def interval_s(self) -> float:
        """Return how often usage is collected."""
        return max(1.0, REFRESHES_PER_RUN * self._state.snapshot.configuration.daemon.refresh_s)

    def _loop(self) -> None:
        super()._loop()
        self._store.close()


def log_line(usage: Usage) -> str:
    """Return *usage* on one line."""
    used = "utilization unknown" if usage.gpu_utilization is None else f"utilization {usage.gpu_utilization:.0%}"
    return visible(f"{usage.manager} job {usage.job_id} of {usage.user}: {usage.outcome} | {used}")


def is_new(store: DecisionStore, usage: Usage) -> bool:
    """Return whether *store* has no row of *usage*'s run and node that was sampled; a requeued run may have another."""
    known = (each.usage for each in _of_job(store, usage) if not is_of_another_node(each.usage, usage))
    return not any(each.sampled_s and is_same_run(each, usage) for each in known)


def count_runs(tally: RunCounters, store: DecisionStore, usages: Sequence[Usage], least_s: float) -> None:
    """Add *usages*, which are in *store*, to *tally* where sampled for *least_s* or longer."""
    for usage in usages:
        for observed in (each for each in _of_job(store, usage) if _is_same(each.usage, usage)):
            tally.add(observed)
            if had_share(observed):
                # How long a job takes on its share shows only beside the user's other runs.
                since_s = usage.ended_at_s - HISTORY_DAYS * DAY_S
                history = store.usage(UsageQuery(since_s=since_s, user=usage.user, count=HISTORY_RUNS))
                checked = runs_with_promise(history, least_s)
                held = next((held for each, held in checked if _is_same(each.usage, usage)), None)
                tally.add_promise(held=held)


def _of_job(store: DecisionStore, usage: Usage) -> tuple[Observation, ...]:
    return store.usage(UsageQuery(manager=usage.manager, job_id=usage.job_id, number=usage.number))


def _is_same(one: Usage, other: Usage) -> bool:
    """Return whether both are of one run, and *one* has been sampled as *other* was."""
    return (one.manager, one.started_at_s, one.sampled_s) == (other.manager, other.started_at_s, other.sampled_s)


def _key(usage: Usage) -> _Run:
    return usage.manager, usage.job_id, usage.started_at_s
