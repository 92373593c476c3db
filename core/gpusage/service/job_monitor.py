"""Monitors rewritten jobs: one that can never start as a share, or runs out of its memory, gets its GPU back.

Invariants:

1. A request is restored only after its job was stuck in every run of the monitor for a while, and once.
   After an error it is tried again, each time after the job has been stuck for twice as long.
2. The monitor is idle while no job was rewritten and none has waited or run recently: a run costs the manager three
   listings. They also show which jobs run where, so no answer to a job waits for that.
3. With the kill switch on, and in any mode but ``enforce``, stuck jobs are only reported, for as long as that holds.
4. The record of a job on a share is read once, while its job runs. It may be written late, so a missing one is looked
   up in `MAXIMUM_LOOKUPS` runs of the monitor. A job whose record is gone is nobody's neighbour.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpusage.decisions.outcome import hold_reason
from gpusage.plugins.hooks import sentence
from gpusage.service.periodic_task import PeriodicTask
from gpusage.service.requeue import OutOfMemoryRequeue
from gpusage.service.snapshots import State
from gpusage.store.annotation import parse_annotation
from gpusage.store.decisions import DecisionStore
from gpusage_hooks.types import AnnotatedJob, DecisionRecord, Neighbour

REPORTED_JOBS_LIMIT = 20
MAXIMUM_LOOKUPS = 3
RETRY_LIMIT_S = 3600.0
RECENT_S = 60.0
"""A node's report of a job that ran out of memory may come some seconds after the job's end."""
_log = logging.getLogger(__name__)
_Key = tuple[str, str]


class JobMonitor(PeriodicTask):
    """Monitors rewritten jobs, in a thread of its own.

    Args:
        state: Has the managers, and the site's mode.
        store: Used in the monitor's thread alone.

    Attributes:
        due: Set where a run may find something: a job was rewritten, or one waits or runs.
    """

    def __init__(self, state: State, store: DecisionStore) -> None:
        super().__init__("job_monitor", "rewritten jobs cannot be checked")
        self.due = threading.Event()
        self.due.set()  # jobs may have been rewritten before this daemon was started
        self._state = state
        self._requeue = OutOfMemoryRequeue(store)
        self._neighbour_lookup = NeighbourLookup(store)
        self._stuck_since_s: dict[_Key, float] = {}
        self._retry_at_s: dict[_Key, float] = {}
        self._reports: dict[_Key, str] = {}
        self._restored_count = 0
        self._jobs: dict[_Key, AnnotatedJob] = {}
        self._last_seen_s = -math.inf

    def status(self) -> dict[str, Any]:
        """Return the counts of changes, and the jobs that need an administrator."""
        reports = dict(self._reports)
        return {
            "turned_back": self._restored_count,
            "stuck": [*reports.values()][:REPORTED_JOBS_LIMIT],
            "requeued": self._requeue.count,
            "not_requeued": self._requeue.refusals()[:REPORTED_JOBS_LIMIT],
            "error": self.error,
        }

    def run_once(self) -> None:
        """List the jobs and restore the requests of stuck ones; after a failure the next run may succeed."""
        self.due.clear()
        self._jobs = {}
        super().run_once()

        self._last_seen_s = time.monotonic() if self._jobs else self._last_seen_s
        is_recent = time.monotonic() < self._last_seen_s + RECENT_S
        if is_recent or self.error or not self._state.snapshot.clusters:
            self.due.set()  # the next run may find something
        self._restore_stuck(self._jobs, time.monotonic())

    def execute(self) -> None:
        """Find the rewritten jobs, the failed ones, and the neighbours of shares."""
        snapshot = self._state.snapshot
        for manager in snapshot.clusters:
            context = snapshot.advisor.context(manager)
            jobs = snapshot.advisor.hooks.find_shared_jobs(manager, ("waiting", "running"), context)
            whole = snapshot.clusters[manager].unshared
            self._jobs |= {(manager, job.job_id): _without_right_to_share(job, whole) for job in jobs or ()}

        self._requeue.run(snapshot)
        for identity in self._requeue.recorded_failures:
            self._state.add_failure(identity)

        # The predictions for the neighbours are in the store.
        for manager in self._state.snapshot.clusters:
            own = [job for job in self._jobs.values() if job.manager == manager]
            self._state.set_neighbours(manager, self._neighbour_lookup.find(own))

    def is_due(self) -> bool:
        """Return whether a run may find something."""
        return self.due.is_set()

    def interval_s(self) -> float:
        """Return how often the cluster is observed, at most every second."""
        return max(1.0, self._state.snapshot.configuration.daemon.refresh_s)

    def _restore_stuck(self, jobs: dict[_Key, AnnotatedJob], now_s: float) -> None:
        """Restore the requests of the jobs that have been stuck for long enough, and are due to be tried."""
        stuck = {key: job for key, job in jobs.items() if job.stuck}
        self._stuck_since_s = {key: self._stuck_since_s.get(key, now_s) for key in stuck}
        self._retry_at_s = {key: retry_at_s for key, retry_at_s in self._retry_at_s.items() if key in stuck}
        self._reports = {key: text for key, text in self._reports.items() if key in stuck}

        limit_s = self._state.snapshot.configuration.daemon.stuck_after_s
        for key, job in stuck.items():
            if now_s >= max(self._stuck_since_s[key] + limit_s, self._retry_at_s.get(key, 0.0)):
                reason = self._restore(key, job, now_s)
                if not reason:
                    self._reports.pop(key, None)
                    continue
                text = f"{job.manager} job {job.job_id} of {job.user} cannot start as a share: {job.stuck}; {reason}"
                if self._reports.get(key) != text:
                    _log.warning("%s", text)
                self._reports[key] = text

    def _restore(self, key: _Key, job: AnnotatedJob, now_s: float) -> str:
        """Restore *job*'s request, and set when to try again; return why it was not restored, or ``""``."""
        snapshot = self._state.snapshot
        reason = hold_reason(snapshot.configuration.mode, snapshot.kill_reason)
        if reason:
            return reason

        try:
            done = snapshot.advisor.hooks.restore_request(job, job.stuck, snapshot.advisor.context(job.manager))
        except Exception as error:  # an adapter may fail in any way
            # At twice the time that the job has been stuck, so that a broken manager is asked ever less often.
            self._retry_at_s[key] = now_s + min(now_s - self._stuck_since_s[key], RETRY_LIMIT_S)
            return sentence(error)
        # Whether it worked or is not supported, once is enough.
        self._retry_at_s[key] = math.inf
        if not done:
            return "this version of its manager cannot turn it back"

        self._restored_count += 1
        _log.info("%s job %s of %s was turned back: %s", job.manager, job.job_id, job.user, job.stuck)
        return ""


def _without_right_to_share(job: AnnotatedJob, unshared: Mapping[str, str]) -> AnnotatedJob:
    """Return *job*, stuck where it waits under one of *unshared*, to which its share would be a way around a limit."""
    why = next((unshared[scope] for scope in job.scopes if scope in unshared), "")
    return replace(job, stuck=f"no share is for it any more: {why}", needs_whole_gpu=True) if why else job


class NeighbourLookup:
    """Finds the neighbours that a share may get.

    Args:
        store: Used in the monitor's thread alone.
    """

    def __init__(self, store: DecisionStore) -> None:
        self._store = store
        self._records: dict[str, DecisionRecord] = {}
        self._failed_lookups = Counter[str]()

    def find(self, jobs: Iterable[AnnotatedJob]) -> tuple[Neighbour, ...]:
        """Return the jobs of *jobs* that run on shares, each with its prediction at the decision.

        Raises:
            StoreError: The store cannot be read.
        """
        marked = [(job, parse_annotation(job.mark)) for job in jobs if job.nodes]
        running = [(mark.number, job) for job, mark in marked if mark and mark.number]
        records: dict[str, DecisionRecord | None] = {}
        for number, _ in running:
            records[number] = self._records.get(number)
            if records[number] is None and self._failed_lookups[number] < MAXIMUM_LOOKUPS:
                records[number] = self._store.find(number)

        # Only records of jobs that run stay.
        self._records = {number: record for number, record in records.items() if record is not None}
        missing = records.keys() - self._records
        self._failed_lookups = Counter({number: self._failed_lookups[number] + 1 for number in missing})

        neighbours = (make_neighbour(job, self._records[number]) for number, job in running if number in self._records)
        return tuple(neighbour for neighbour in neighbours if neighbour is not None)


def make_neighbour(job: AnnotatedJob, record: DecisionRecord) -> Neighbour | None:
    """Return *job* as a neighbour, by the *record* of its decision; ``None`` where that gave it no share."""
    decision = record.decision
    share_percent = decision.request.mps_thread_percent
    if not share_percent or decision.need is None or record.workload is None:
        return None

    return Neighbour(
        nodes=job.nodes,
        share_percent=share_percent,
        thread_percent=decision.request.thread_cap_percent or share_percent,
        need=decision.need,
        workload=record.workload,
        user=record.identity.user if record.identity else "",
    )
