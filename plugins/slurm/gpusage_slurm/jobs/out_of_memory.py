"""Jobs that ran out of GPU memory in their share: those that were requeued with a whole GPU, and those that failed.

The task epilog (node/task_epilog.sh) requeues a job, as the job's user and before slurmctld learns of its end. It
appends a note to the job's comment: `REQUEUED` if it requeued the job, `OUT_OF_MEMORY` if it could not. This module
finds the requeued jobs by that note, corrects their marks, and removes the placement of their share.

Invariants:

1. Only a job that the epilog requeued is changed, and none is requeued here: others know how the rest have ended.
2. A job is never held. While gpusaged is stopped, a requeued job runs with its whole GPU and keeps its old mark.
3. Of an array only the failed task is requeued.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from gpusage.store.annotation import parse_annotation
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import AnnotatedJob, OutOfMemoryJob
from gpusage_slurm.jobs.queue import Row, annotated_job, base_id, is_interrupted, squeue_rows, squeue_rows_of
from gpusage_slurm.jobs.restore import record_requeue
from gpusage_slurm.tres import is_share, parse_tres

OUT_OF_MEMORY = "[out of GPU memory, says gpusage]"
REQUEUED = re.compile(r" ?\[out of GPU memory, started ([0-9T:-]+), says gpusage\]")
_FAILED = "--states=FAILED"
_ANY = "--states=all"
_FIRST = (("JobArrayID", 64), ("tres-per-node", 128))
_STARTS = (("JobArrayID", 64), ("RestartCnt", 8))
_COLUMNS = (
    *(("JobArrayID", 64), ("UserName", 64), ("StateCompact", 4), ("Reason", 64), ("Requeue", 8), ("BatchFlag", 8)),
    ("exit_code", 16),
    *(("StartTime", 24), ("EndTime", 24), ("SubmitTime", 24), ("Comment", 1100), ("admin_comment", 1100)),
)


def find_out_of_memory_jobs() -> tuple[OutOfMemoryJob, ...]:
    """Return the jobs that failed in their shares, and those that run again; see the hook.

    Raises:
        RequestError: slurmctld does not answer.
    """
    failed = [row["JobArrayID"] for row in squeue_rows(_FAILED, columns=_FIRST) if _held_share(row)]
    requeued = [row["JobArrayID"] for row in squeue_rows(_ANY, columns=_STARTS) if row["RestartCnt"] not in ("", "0")]
    return (
        *(
            _failed(row)
            for row in _details(failed)
            if OUT_OF_MEMORY in row["Comment"] or not is_interrupted(row["exit_code"], row["Comment"])
        ),
        *(_requeued(row, started) for row in _details(requeued) if (started := _requeued_start(row))),
    )


def complete_requeue(job: AnnotatedJob, reason: str) -> bool:
    """Correct the mark of *job*, which its epilog requeued, and remove the placement of its share; see the hook.

    Raises:
        RequestError: slurmctld refuses, or the job was not requeued.
    """
    row = next(iter(_details((job.job_id,))), None)
    if row is None or not REQUEUED.search(row["Comment"]):
        message = f"Job {job.job_id} must have been requeued by its task epilog; it was not. It is left as it is."
        raise RequestError(message)
    if annotated_job(row).state == "ended":
        return True  # slurmctld changes no such job
    return record_requeue(annotated_job(row), reason, f"Comment={REQUEUED.sub('', row['Comment'])}")


def _held_share(row: Row) -> bool:
    return any(map(is_share, parse_tres(row["tres-per-node"])))


def _details(job_ids: Sequence[str]) -> Iterator[Row]:
    """Yield the jobs with *job_ids*, as far as they are marked as shares of ours."""
    bases = list(dict.fromkeys(map(base_id, job_ids)))
    for row in squeue_rows_of(bases, _ANY, columns=_COLUMNS):
        mark = parse_annotation(row["admin_comment"])
        if row["JobArrayID"] in job_ids and mark is not None and mark.of_share:
            yield row


def _failed(row: Row) -> OutOfMemoryJob:
    return OutOfMemoryJob(
        job=annotated_job(row),
        started_at_s=_seconds(row["StartTime"]),
        ended_at_s=_seconds(row["EndTime"]),
        final=_why_not_requeued(row),
        outcome="out_of_memory" if OUT_OF_MEMORY in row["Comment"] else "failed",
    )


def _requeued_start(row: Row) -> str:
    """Return when the run began that the job's epilog requeued; empty where it did not, or is still about to."""
    note = REQUEUED.search(row["Comment"])
    return note[1] if note and note[1] != row["StartTime"] else ""


def _requeued(row: Row, started: str) -> OutOfMemoryJob:
    """Return the job in *row*, whose first run began at *started*; slurmctld counts it as submitted when that ended."""
    ended_at_s = _seconds(row["SubmitTime"])
    return OutOfMemoryJob(job=annotated_job(row), started_at_s=_seconds(started) or ended_at_s, ended_at_s=ended_at_s)


def _why_not_requeued(row: Row) -> str:
    if row["Requeue"] == "0":
        return "it was submitted with --no-requeue, or the site requeues no job"
    if row["BatchFlag"] == "0" or "+" in row["JobArrayID"]:
        return "only batch jobs that have one part run again"
    return "its node could not tell how it ended, or was not allowed to change it"


def _seconds(text: str) -> float:
    """Return seconds since 1970 of the local time *text*; 0 where it is none."""
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        return 0.0
