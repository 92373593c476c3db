"""Counts runs that were observed, each once, with whether the promise to it was kept.

The nodes' reports stay for long, so a restarted daemon collects old runs again: what the store has is not new.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpusage.experience.finished_jobs import is_of_another_node, is_same_run
from gpusage.reports.accuracy import runs_with_promise
from gpusage.reports.amounts import had_share
from gpusage.service.counters import RunCounters
from gpusage.store.decisions import DecisionStore
from gpusage.store.rows import Observation, UsageQuery
from gpusage_hooks.types import Usage
from gpusage_hooks.units import DAY_S

HISTORY_DAYS = 90
HISTORY_RUNS = 1000


def is_new(store: DecisionStore, usage: Usage) -> bool:
    """Return whether *store* has no row of *usage*'s run and node that was sampled; a requeued run may have another."""
    known = (each.usage for each in _of_job(store, usage) if not is_of_another_node(each.usage, usage))
    return not any(each.sampled_s and is_same_run(each, usage) for each in known)


def count_runs(tally: RunCounters, store: DecisionStore, usages: Sequence[Usage], least_s: float) -> None:
    """Add to *tally* what *usages* show, which are in *store*, where sampled for *least_s* or longer."""
    for usage in usages:
        for observed in (each for each in _of_job(store, usage) if _is_same(each.usage, usage)):
            tally.add(observed)
            if had_share(observed):
                tally.add_promise(held=_promise_held(store, observed, least_s))


def _promise_held(store: DecisionStore, observed: Observation, least_s: float) -> bool | None:
    usage = observed.usage
    since_s = usage.ended_at_s - HISTORY_DAYS * DAY_S
    history = store.usage(since_s=since_s, user=usage.user, count=HISTORY_RUNS)
    return next((held for each, held in runs_with_promise(history, least_s) if _is_same(each.usage, usage)), None)


def _of_job(store: DecisionStore, usage: Usage) -> tuple[Observation, ...]:
    return store.observations(UsageQuery(manager=usage.manager, job_id=usage.job_id, number=usage.number))


def _is_same(one: Usage, other: Usage) -> bool:
    """Return whether both are of one run, and *one* has been sampled as *other* was."""
    return (one.manager, one.started_at_s, one.sampled_s) == (other.manager, other.started_at_s, other.sampled_s)
