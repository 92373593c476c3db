"""Learns from the runs in the store, in the background.

Invariants:

1. No answer waits for it: it reads in a thread of its own, and publishes a whole value.
2. While the store cannot be read, earlier experience holds.
3. After a new run everything is learned anew, so the order in which runs come changes nothing.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from gpusage.experience.history import History, read_history
from gpusage.experience.learned import NO_FAILURES, NOTHING_LEARNED, FirstRun, Learned, failures_of
from gpusage.experience.learning import first_runs, learn
from gpusage.experience.runs import Run, model_runs
from gpusage.experience.trust import Check, history_checks, history_trust
from gpusage.service.periodic_task import PeriodicTask
from gpusage.settings.configuration import Configuration, LearningSettings
from gpusage.store.decisions import DecisionStore
from gpusage.store.rows import Observation, UsageQuery
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import DecisionRecord, GpuRequest, RenderedDecision
from gpusage_hooks.units import DAY_S, WHOLE_PERCENT

MAXIMUM_RUNS, MAXIMUM_RUNS_PER_USER = 20_000, 2_000
"""The newest; a site with more learns nothing else from the rest, and no user's runs displace everyone else's."""

FIRST_RUNS_PER_USER, FIRST_RUN_DAYS = 200, 7
"""The newest; a job that shows its model in its own run is followed by the next of its script, most often soon."""

SHARE_DAYS, NEWEST_DECISIONS = 7, 1000
"""Whose shares tell which sizes this site's jobs have: runs that ended, and the newest decisions besides."""
LEAST_DECISIONS = 20
"""Fewer jobs with a prediction do not tell which sizes a site has."""

RELEARN_S = 3600.0
"""A run that came late, after others that ended later, is learned from within this period."""

_NOTHING = RenderedDecision(before="", after="", fields={})
_log = logging.getLogger(__name__)


def learn_from_store(store: DecisionStore, settings: LearningSettings, now_s: float) -> Learned:
    """Return the experience of the runs in *store*.

    Raises:
        StoreError: It cannot be read.
    """
    query = UsageQuery(
        since_s=now_s - settings.days * DAY_S,
        least_run_s=settings.least_sampled_s,
        count=MAXIMUM_RUNS,
        only_decided=True,
    )
    runs, checks, ended, failures = list[Run](), list[Check](), dict[str, GpuRequest](), NO_FAILURES
    # User by user, as a run is a tenth of its decision: a job's runs are one user's, and so is what lifts a failure.
    for _, of_user in groupby(learnable(store.evidence(MAXIMUM_RUNS_PER_USER, query)), lambda each: each.usage.user):
        observations = [*of_user]
        ended |= predicted_requests([each.decision for each in observations if each.decision], now_s)
        # Also where a site learns nothing else: a job that failed in its share must not get it again.
        failures = failures_of(observations, settings.least_sampled_s, failures)
        if settings.enabled:
            runs += (run for _, run in model_runs(observations, settings.least_sampled_s))
            checks += history_checks(observations, settings.least_sampled_s)

    smallest = smallest_shares(store, now_s, ended)
    if not settings.enabled:
        return replace(NOTHING_LEARNED, failures=failures, smallest_shares=smallest)

    learned = learn(runs)
    if settings.history != "off":
        history = _cached_history(Path(settings.history_file), _modified_ns(settings))
        learned = replace(learned, history=history, trust=history_trust(checks))

    suspended = learned.suspended if settings.back_off else {}
    return replace(learned, failures=failures, suspended=suspended, smallest_shares=smallest)


def predicted_requests(records: Iterable[DecisionRecord], now_s: float) -> dict[str, GpuRequest]:
    """Return what jobs with a prediction were to ask for by those of *records* of the last week, by their numbers."""
    lately = (each for each in records if each.decided_at_s >= now_s - SHARE_DAYS * DAY_S)
    return {each.number: each.decision.request for each in lately if each.decision.need}


def smallest_shares(store: DecisionStore, now_s: float, ended: Mapping[str, GpuRequest] = {}) -> Mapping[str, int]:
    """Return `Cluster.smallest_shares` by the newest decisions in *store*, and those on jobs that have *ended*."""
    predicted = {**ended, **predicted_requests(store.latest(NEWEST_DECISIONS), now_s)}
    if len(predicted) < LEAST_DECISIONS:
        return {}

    smallest = {"": WHOLE_PERCENT}
    for request in predicted.values():
        for name in request.required_gpus or ("",) if request.mps_thread_percent else ():
            smallest[name] = min(request.mps_thread_percent or WHOLE_PERCENT, smallest.get(name, WHOLE_PERCENT))
    return smallest


def learnable(observations: Iterable[Observation]) -> Iterator[Observation]:
    """Yield *observations* without what nothing is learned from; of 10 KB of decisions, equal parts are one object."""
    parts: dict[Any, Any] = {}
    for each in observations:
        record = each.decision
        if record is not None:
            decision, workload, identity = record.decision, record.workload, record.identity
            request = parts.setdefault(decision.request, decision.request)
            need, workload, identity = (parts.setdefault(part, part) for part in (decision.need, workload, identity))
            decision = replace(decision, request=request, need=need, reasons=(), step_times_s={}, if_shared=())
            record = replace(record, decision=decision, workload=workload, identity=identity, rendered=_NOTHING)
        yield Observation(usage=each.usage, decision=record)


def first_runs_in_store(
    store: DecisionStore, settings: LearningSettings, now_s: float
) -> Mapping[tuple[str, str], FirstRun]:
    """Return the newest runs in *store* of jobs that named no model.

    Raises:
        StoreError: It cannot be read.
    """
    if not settings.enabled or settings.capture == "off":
        return {}
    query = UsageQuery(since_s=now_s - FIRST_RUN_DAYS * DAY_S, least_run_s=settings.least_sampled_s, count=MAXIMUM_RUNS)
    newest = store.evidence(FIRST_RUNS_PER_USER, query)
    # A job that named its model is decided by that.
    unnamed = (each.usage for each in newest if each.decision is None or each.decision.model is None)
    return first_runs(unnamed, settings.least_sampled_s)


@lru_cache(maxsize=1)
def _cached_history(path: Path, modified_ns: int) -> History | None:  # a part of the cache's key
    """Return the history at *path*; ``None`` where none can be read: all else is learned without it.

    Its many small objects are left out of garbage collection, which would delay each answer.
    """
    # The collector would visit each new object several times while they are made.
    gc.disable()
    try:
        return read_history(path)
    except RequestError as error:
        _log.warning("%s", error)
        return None
    finally:
        gc.freeze()
        gc.enable()


def _modified_ns(settings: LearningSettings) -> int:
    """Return when the history's file was modified; 0 where there is none, or none is wanted."""
    try:
        return 0 if settings.history == "off" else Path(settings.history_file).stat().st_mtime_ns
    except OSError:
        return 0


class Learner(PeriodicTask):
    """Learns from the store.

    Args:
        configuration: Returns the newest.
        open_store: Opens the store, in this thread.
        publish: Receives the experience, whenever it may have changed.
    """

    runs_at_start = True  # the first jobs are decided by what was learned, too

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        open_store: Callable[[], DecisionStore],
        publish: Callable[[Learned], None],
    ) -> None:
        super().__init__("learner", "what earlier runs showed cannot be read")
        self._configuration = configuration
        self._open_store = open_store
        self._publish = publish
        self._learned_key: object = None
        self._learned = NOTHING_LEARNED
        self._unnamed_key: object = None

    def execute(self) -> None:
        """Learn again if a run was recorded or a setting changed since the last time."""
        settings, now_s = self._configuration().learning, time.time()
        with closing(self._open_store()) as store:
            # Nothing is learned twice from the same runs: one row is read instead of 20,000.
            newest = store.usage(UsageQuery(count=1, only_decided=True))
            key = settings, newest, int(now_s / RELEARN_S), _modified_ns(settings)
            learned = learn_from_store(store, settings, now_s) if key != self._learned_key else self._learned
            unnamed_key = settings, store.usage(UsageQuery(count=1))
            if (key, unnamed_key) == (self._learned_key, self._unnamed_key):
                return

            self._learned, self._learned_key, self._unnamed_key = learned, key, unnamed_key
            self._publish(replace(learned, first_runs=first_runs_in_store(store, settings, now_s)))

    def interval_s(self) -> float:
        """Return how often new runs are looked for."""
        return self._configuration().learning.refresh_s
