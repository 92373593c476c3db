"""Lets jobs that starved in their share run again, once, with a whole GPU, and records that they did.

Invariants:

1. A job is tried once by this process. That it is rescued once in all is the manager's to keep: the mark that the job
   carries, and the manager's own count of its starts, outlive this process.
2. Where nothing may be changed (mode, kill switch, ``sharing.rescue``, ``--no-requeue``), the miss is recorded alone.
3. What cannot be recorded is tried again at the next look.
4. A look ends in time, and each user's first job comes before anybody's second: one user's many hold up nobody's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from gpusage.error_text import sentence
from gpusage.mark import parse_mark
from gpusage.service.state import Snapshot
from gpusage.service.usage_keeping import keep_usage
from gpusage.store.decisions import DecisionStore
from gpusage.turns import in_turns
from gpusage.verdict import why_held_back
from gpusage_hooks.types import StarvedJob, Usage

REASON = "CUDA ran out of memory in its share, so it runs again with a whole GPU"
_NOT_HERE = "this version of its manager, or this cluster, cannot do it"
LOOK_LIMIT_S = 30.0
"""A rescue takes seconds, because a job has to leave its node first; and it is the user who makes it leave late."""
_log = logging.getLogger(__name__)
_Key = tuple[str, str, float]


class Rescue:
    """Looks for starved jobs; used in one thread.

    Args:
        open_store: Opens the store, in that thread; ``None`` where nothing is kept.

    Attributes:
        count: Jobs that were rescued.
    """

    def __init__(self, open_store: Callable[[], DecisionStore] | None) -> None:
        self.count = 0
        self._open_store = open_store
        self._store: DecisionStore | None = None
        self._tried: dict[_Key, str] = {}
        self._unrecorded: list[StarvedJob] = []

    def troubles(self) -> list[str]:
        """Return the jobs that starved and were not rescued, as long as their managers know them, each with why."""
        return [text for text in self._tried.values() if text]

    def look(self, snapshot: Snapshot) -> None:
        """Look once.

        Raises:
            GpuUsageError: A manager does not answer, or the store cannot be written.
        """
        starved = {_key(each): each for each in _starved(snapshot)}
        self._tried = {key: text for key, text in self._tried.items() if key in starved}
        new = {key: each for key, each in starved.items() if key not in self._tried}
        end_s = time.monotonic() + LOOK_LIMIT_S
        for key in in_turns({key: each.job.user for key, each in new.items()}):
            if time.monotonic() >= end_s:
                break  # the others are new at the next look
            self._unrecorded.append(new[key])
            self._tried[key] = self._help(new[key], snapshot)
        self._record(snapshot)

    def _help(self, starved: StarvedJob, snapshot: Snapshot) -> str:
        """Rescue a job; return why it was not, as one sentence."""
        job, why_not = starved.job, starved.final or _why_not(snapshot)
        if not why_not:
            try:
                done = snapshot.advisor.hooks.rescue(job, REASON, snapshot.advisor.context(job.manager))
                why_not = "" if done else _NOT_HERE
            except Exception as error:  # noqa: BLE001 - an adapter may fail in any way
                why_not = sentence(error)
        name = f"{job.manager} job {job.job_id} of {job.user}"
        if why_not:
            _log.warning("%s ran out of memory in its share, and is not run again: %s", name, why_not)
            return f"{name} ran out of memory in its share, and is not run again: {why_not}"
        self.count += 1
        _log.info("%s ran out of memory in its share, and runs again with a whole GPU", name)
        return ""

    def _record(self, snapshot: Snapshot) -> None:
        if self._open_store is None or not self._unrecorded:
            return
        self._store = self._store or self._open_store()
        keep_usage([_usage(each) for each in self._unrecorded], self._store, snapshot.advisor.hooks)
        self._unrecorded = []


def _starved(snapshot: Snapshot) -> Iterable[StarvedJob]:
    for manager in snapshot.clusters:
        yield from snapshot.advisor.hooks.starved_jobs(manager, snapshot.advisor.context(manager)) or ()


def _why_not(snapshot: Snapshot) -> str:
    configuration = snapshot.configuration
    if not configuration.sharing.rescue:
        return "the site has set sharing.rescue = false"
    return why_held_back(configuration.mode, snapshot.killed)


def _usage(starved: StarvedJob) -> Usage:
    """Return what the manager knows of the run that failed."""
    job, mark = starved.job, parse_mark(starved.job.mark)
    return Usage(
        number=mark.number if mark else "",
        manager=job.manager,
        job_id=job.job_id,
        user=job.user,
        outcome="out_of_memory",
        started_at_s=starved.started_at_s,
        ended_at_s=starved.ended_at_s,
    )


def _key(starved: StarvedJob) -> _Key:
    return starved.job.manager, starved.job.job_id, starved.started_at_s
