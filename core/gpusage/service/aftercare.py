"""Watches jobs after they were rewritten: a job that can never start as a share, or starves in it, gets its GPU again.

Invariants:

1. A job is turned back only after it has looked stuck at every look for a while, and once.
   After an error it is tried again, each time after it has been stuck for twice as long.
2. Nothing is asked while no job was rewritten and none has waited or run of late: a look costs the manager three
   listings. Who runs where is known from the same listings, so no answer to a job waits for it.
3. With the kill switch on, and in any mode but ``enforce``, jobs are only told of, for as long as that holds.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from gpusage.error_text import sentence
from gpusage.service.neighbourhood import Neighbourhood
from gpusage.service.rescue import Rescue
from gpusage.service.state import State
from gpusage.service.watch import Watch
from gpusage.store.decisions import DecisionStore
from gpusage.verdict import why_held_back
from gpusage_hooks.types import MarkedJob

REMEMBERED_TROUBLES = 20
LONGEST_PAUSE_S = 3600.0
OF_LATE_S = 60.0
"""What a node tells of a job that has starved may come some seconds after the job's end."""
_log = logging.getLogger(__name__)
_Key = tuple[str, str]


class Aftercare(Watch):
    """Looks after rewritten jobs, in a thread of its own.

    Args:
        state: Whose jobs to look at, and what may be done.
        open_store: Opens the store, in the thread that looks; ``None`` where nothing is kept.

    Attributes:
        due: Set where there may be something to look at: a job was rewritten, or one waits or runs.
    """

    def __init__(self, state: State, open_store: Callable[[], DecisionStore] | None = None) -> None:
        super().__init__("aftercare", "rewritten jobs cannot be looked at")
        self.due = threading.Event()
        self.due.set()  # jobs may have been rewritten before this daemon was started
        self._state = state
        self._rescue = Rescue(open_store)
        self._neighbourhood = Neighbourhood(open_store) if open_store else None
        self._since_s: dict[_Key, float] = {}
        self._again_s: dict[_Key, float] = {}
        self._troubles: dict[_Key, str] = {}
        self._turned_back = 0
        self._found: dict[_Key, MarkedJob] = {}
        self._seen_s = -math.inf

    def status(self) -> dict[str, Any]:
        """Return what was done, and which jobs need a person."""
        troubles = dict(self._troubles)
        return {
            "turned_back": self._turned_back,
            "stuck": [*troubles.values()][:REMEMBERED_TROUBLES],
            "rescued": self._rescue.count,
            "not_rescued": self._rescue.troubles()[:REMEMBERED_TROUBLES],
            "error": self.error,
        }

    def look(self) -> None:
        """Look once; whatever goes wrong, the next look may succeed."""
        self.due.clear()
        self._found = {}
        super().look()
        self._seen_s = time.monotonic() if self._found else self._seen_s
        is_late = time.monotonic() < self._seen_s + OF_LATE_S
        if is_late or self.error or not self._state.snapshot.clusters:
            self.due.set()  # there is something to look at next time
        self._act(self._found, time.monotonic())

    def _look(self) -> None:
        snapshot = self._state.snapshot
        for manager in snapshot.clusters:
            context = snapshot.advisor.context(manager)
            jobs = snapshot.advisor.hooks.shared_jobs(manager, ("waiting", "running"), context)
            self._found |= {(manager, job.job_id): job for job in jobs or ()}
        self._rescue.look(snapshot)
        self._tell_neighbours(self._found)

    def _is_due(self) -> bool:
        return self.due.is_set()

    def _pause_s(self) -> float:
        return max(1.0, self._state.snapshot.configuration.daemon.refresh_s)

    def _tell_neighbours(self, found: dict[_Key, MarkedJob]) -> None:
        """Let decisions know who runs where.

        Raises:
            StoreError: What was predicted for these jobs cannot be read.
        """
        if self._neighbourhood is None:
            return
        for manager in self._state.snapshot.clusters:
            jobs = [job for job in found.values() if job.manager == manager]
            self._state.take_neighbours(manager, self._neighbourhood.neighbours(jobs))

    def _act(self, found: dict[_Key, MarkedJob], now_s: float) -> None:
        stuck = {key: job for key, job in found.items() if job.stuck}
        self._since_s = {key: self._since_s.get(key, now_s) for key in stuck}
        self._again_s = {key: again_s for key, again_s in self._again_s.items() if key in stuck}
        self._troubles = {key: text for key, text in self._troubles.items() if key in stuck}
        limit_s = self._state.snapshot.configuration.daemon.stuck_after_s
        for key, job in stuck.items():
            if now_s >= max(self._since_s[key] + limit_s, self._again_s.get(key, 0.0)):
                self._help(key, job, now_s)

    def _help(self, key: _Key, job: MarkedJob, now_s: float) -> None:
        """Turn *job* back, or remember why not, and when to try again."""
        snapshot = self._state.snapshot
        why_not = why_held_back(snapshot.configuration.mode, snapshot.killed)
        if why_not:
            self._note(key, job, why_not)
            return
        try:
            done = snapshot.advisor.hooks.turn_back(job, job.stuck, snapshot.advisor.context(job.manager))
        except Exception as error:  # noqa: BLE001 - an adapter may fail in any way
            self._again_s[key] = now_s + min(now_s - self._since_s[key], LONGEST_PAUSE_S)
            self._note(key, job, sentence(error))
            return
        self._again_s[key] = math.inf
        if not done:
            self._note(key, job, "this version of its manager cannot turn it back")
            return
        self._troubles.pop(key, None)
        self._turned_back += 1
        _log.info("%s job %s of %s was turned back: %s", job.manager, job.job_id, job.user, job.stuck)

    def _note(self, key: _Key, job: MarkedJob, why_not: str) -> None:
        text = f"{job.manager} job {job.job_id} of {job.user} cannot start as a share: {job.stuck}; {why_not}"
        if self._troubles.get(key) != text:
            _log.warning("%s", text)
        self._troubles[key] = text
