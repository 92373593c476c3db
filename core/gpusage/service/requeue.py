"""Records the jobs that ran out of their share's memory, and corrects those that run again with a whole GPU.

Invariants:

1. Nothing is started again here: whoever waits for a job would have seen it fail. Its adapter's own part on the node
   requeues it before anybody hears of the end; that gives back what was taken, so no mode or kill switch stops it.
2. This process handles a run once. A run that cannot be recorded is tried again.
3. A run ends in time, and each user's first job comes before anybody's second: one user's many hold up no others.
"""

from __future__ import annotations

import logging
import time
from collections import Counter

from gpusage.plugins.hooks import sentence
from gpusage.service.recorder import record_usage
from gpusage.service.snapshots import Snapshot
from gpusage.store.annotation import parse_annotation
from gpusage.store.decisions import DecisionStore
from gpusage_hooks.types import JobIdentity, OutOfMemoryJob, Usage

REASON = "CUDA ran out of memory in its part of a GPU, so it runs again with more"
_UNSUPPORTED = "this version of its manager, or this cluster, cannot do it"
RUN_LIMIT_S = 30.0
"""A requeue takes seconds, because a job has to leave its node first; and it is the user who makes it leave late."""
_log = logging.getLogger(__name__)
_Run = tuple[str, str, float]


class OutOfMemoryRequeue:
    """Handles jobs that ran out of memory; used in one thread.

    Args:
        store: Used in that thread alone.

    Attributes:
        count: Jobs that run again.
        recorded_failures: The jobs whose failures the last run recorded.
    """

    def __init__(self, store: DecisionStore) -> None:
        self.count = 0
        self.recorded_failures: list[JobIdentity] = []
        self._store = store
        self._refusals: dict[_Run, str] = {}  # why a run is not requeued, "" where it is
        self._unrecorded: list[OutOfMemoryJob] = []

    def refusals(self) -> list[str]:
        """Return the jobs that are not requeued, as long as their managers list them, each with the reason."""
        return [refusal for refusal in self._refusals.values() if refusal]

    def run(self, snapshot: Snapshot) -> None:
        """Handle the jobs that failed since the last run.

        Raises:
            GpuUsageError: A manager does not answer, or the store cannot be written.
        """
        failed: dict[_Run, OutOfMemoryJob] = {}
        for manager in snapshot.clusters:
            context = snapshot.advisor.context(manager)
            for each in snapshot.advisor.hooks.find_out_of_memory_jobs(manager, context) or ():
                failed[each.job.manager, each.job.job_id, each.started_at_s] = each
        self._refusals = {key: refusal for key, refusal in self._refusals.items() if key in failed}

        # Each user's first job comes before anybody's second; sorting is stable.
        turns, counts = dict[_Run, int](), Counter[str]()
        for key, each in failed.items():
            if key not in self._refusals:
                counts[each.job.user] += 1
                turns[key] = counts[each.job.user]

        end_s = time.monotonic() + RUN_LIMIT_S
        for key in sorted(turns, key=turns.__getitem__):
            if time.monotonic() >= end_s:
                break  # the others are new in the next run
            self._unrecorded.append(failed[key])
            self._refusals[key] = self._requeue(failed[key], snapshot)
        self._record(snapshot)

    def _requeue(self, failed: OutOfMemoryJob, snapshot: Snapshot) -> str:
        """Have the manager correct a requeued job; return one sentence why it is not requeued, or ``""``."""
        if failed.outcome != "out_of_memory":
            return ""
        job, reason = failed.job, failed.final
        if reason and not snapshot.configuration.sharing.rescue:
            reason = "the site has set sharing.rescue = false"

        if not reason:
            try:
                done = snapshot.advisor.hooks.requeue_on_whole_gpu(job, REASON, snapshot.advisor.context(job.manager))
                reason = "" if done else _UNSUPPORTED
            except Exception as error:  # an adapter may fail in any way
                reason = sentence(error)

        name = f"{job.manager} job {job.job_id} of {job.user}"
        if reason:
            refusal = f"{name} ran out of memory in its share, and is not run again: {reason}"
            _log.warning("%s", refusal)
            return refusal
        self.count += 1
        _log.info("%s ran out of memory in its share, and runs again with a whole GPU", name)
        return ""

    def _record(self, snapshot: Snapshot) -> None:
        self.recorded_failures = []
        if not self._unrecorded:
            return

        reported = []
        for failed in self._unrecorded:
            job, mark = failed.job, parse_annotation(failed.job.mark)
            usage = Usage(
                number=mark.number if mark else "",
                manager=job.manager,
                job_id=job.job_id,
                user=job.user,
                outcome=failed.outcome,
                started_at_s=failed.started_at_s,
                ended_at_s=failed.ended_at_s,
            )
            reported.append(usage)

        usages = record_usage(reported, self._store, snapshot.advisor.hooks)
        records = (self._store.find(usage.number) for usage in usages)
        self.recorded_failures = [record.identity for record in records if record and record.identity]
        self._unrecorded = []
