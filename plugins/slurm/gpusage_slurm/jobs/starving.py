"""Jobs that failed because the memory of their share was too small, and how one of them runs again with a whole GPU.

Two tell of it. The task epilog, which runs as the job's user on the node, writes `SEEN` behind the job's comment where
the batch script's output ends in CUDA's words. And the node's sampler, whose letter says that the job's memory filled
its cap, by NVML's account. slurmctld knows the exit status. A user who forges either gains one more run of that job.

Invariants:

1. A job is rescued at most once: only while Slurm has counted no restart of it, whoever forgets what meanwhile.
2. It is never held. A requeued job waits two minutes, in which it gets its GPU and an earlier start; where we are
   stopped in between, it starts once more as a share. 22.05 gives all shares of one GPU in place of a GPU.
3. Only the failed task of an array is rescued.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from gpusage.hindsight import filled_its_cap
from gpusage.mark import parse_mark
from gpusage.sampler.letter import letter_in
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import MarkedJob, StarvedJob
from gpusage_slurm import scontrol
from gpusage_slurm.jobs.exits import is_interrupted
from gpusage_slurm.jobs.rows import Row, base_id, marked_job, rows, rows_of
from gpusage_slurm.jobs.turning_back import give_back, whole_units
from gpusage_slurm.tres import is_share, parse_list

SEEN = " [out of GPU memory, says gpusage]"
GPU_FOR_SHARE = (23, 11)
"""From this version on a waiting job's share can become a GPU: 22.05 refuses, 24.11 does it."""
_FAILED = "--states=FAILED"
_FIRST = (
    *(("JobArrayID", 64), ("JobID", 16), ("StartTime", 24), ("exit_code", 16), ("tres-per-node", 128)),
    ("Comment", 1100),
)
_COLUMNS = (
    *(("JobArrayID", 64), ("UserName", 64), ("StateCompact", 4), ("Reason", 64), ("Requeue", 8), ("BatchFlag", 8)),
    *(("RestartCnt", 8), ("JobID", 16), ("exit_code", 16)),
    *(("StartTime", 24), ("EndTime", 24), ("Comment", 1100), ("admin_comment", 1100)),
)
_LEAVING_S = 20.0
_PAUSE_S = 0.5
_START = "StartTime=now+10"
"""A node refuses ("Job credential revoked") what was started, by slurmctld's clock and in whole seconds, no later than
the first run ended by the node's own clock; the job then fails. So the clocks may differ by ten seconds."""


def starved_jobs() -> tuple[StarvedJob, ...]:
    """Return the jobs whose share's memory was too small; see the hook.

    Raises:
        RequestError: slurmctld does not answer.
    """
    failed = [row for row in rows(_FAILED, columns=_FIRST) if any(map(is_share, parse_list(row["tres-per-node"])))]
    silent = any(not _says_so(row) for row in failed)
    filled = _filled() if silent else {}
    shares = [row["JobArrayID"] for row in failed if _says_so(row) or _is_filled(row, filled)]
    bases = list(dict.fromkeys(map(base_id, shares)))
    return tuple(_starved(row) for row in _details(bases) if row["JobArrayID"] in shares)


def rescue(job: MarkedJob, reason: str) -> bool:
    """Run *job* again with a whole GPU; see the hook.

    Raises:
        RequestError: slurmctld refuses, or the job is not starved.
    """
    row = next((row for row in _details((base_id(job.job_id),)) if row["JobArrayID"] == job.job_id), None)
    if row is None or not (_says_so(row) or _is_filled(row, _filled())) or _final(row):
        message = f"Job {job.job_id} must have failed for want of GPU memory, once; it has not. It is left as it is."
        raise RequestError(message)
    if scontrol.version() < GPU_FOR_SHARE and whole_units() is None:
        return False
    scontrol.run("scontrol", "requeue", job.job_id)
    return _given_back(job, reason, f"Comment={row['Comment'].replace(SEEN.strip(), '').rstrip()}")


def _given_back(job: MarkedJob, reason: str, comment: str) -> bool:
    """Give *job*, which was requeued, its GPU as soon as its first run has left the node; only then it waits."""
    deadline_s = time.monotonic() + _LEAVING_S
    while not _waits(job) and time.monotonic() < deadline_s:
        time.sleep(_PAUSE_S)
    return give_back(job, reason, _START, comment, as_share=True)


def _waits(job: MarkedJob) -> bool:
    which = ("--states=PENDING", f"--jobs={base_id(job.job_id)}")
    states = {row["JobArrayID"]: row["StateCompact"] for row in rows(*which, columns=_COLUMNS)}
    return states.get(job.job_id) == "PD"


def _details(bases: Sequence[str]) -> Iterator[Row]:
    """Yield the failed jobs with the ids *bases*, as far as they are marked as shares of ours."""
    for row in rows_of(bases, _FAILED, columns=_COLUMNS):
        mark = parse_mark(row["admin_comment"])
        if mark is not None and mark.of_share:
            yield row


def _says_so(row: Row) -> bool:
    return SEEN.strip() in row["Comment"]


def _filled() -> Mapping[str, float]:
    """Return the jobs whose memory filled its cap, as the nodes tell it, each with when its last such run ended."""
    letters = sorted(letter_in(scontrol.run("scontrol", "show", "nodes", "--oneliner")), key=lambda one: one.ended_at_s)
    return {usage.job_id: usage.ended_at_s for usage in letters if filled_its_cap(usage)}


def _is_filled(row: Row, filled: Mapping[str, float]) -> bool:
    """Tell whether the job in *row* filled its cap in its last run, not in one before, and may have failed for that."""
    if is_interrupted(row["exit_code"]):
        return False
    return filled.get(row["JobID"], 0.0) > _seconds(row["StartTime"]) > 0


def _starved(row: Row) -> StarvedJob:
    return StarvedJob(
        job=marked_job(row),
        started_at_s=_seconds(row["StartTime"]),
        ended_at_s=_seconds(row["EndTime"]),
        final=_final(row),
    )


def _final(row: Row) -> str:
    if row["Requeue"] == "0":
        return "it was submitted with --no-requeue, or the site requeues no job"
    if row["RestartCnt"] != "0":
        return "it was started more than once already"
    if row["BatchFlag"] == "0" or "+" in row["JobArrayID"]:
        return "Slurm requeues only batch jobs that have one part"
    return ""


def _seconds(text: str) -> float:
    """Return seconds since 1970 of the local time *text*; 0 where it is none."""
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        return 0.0
