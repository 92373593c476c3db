"""Jobs from squeue and sacct, each with the mark in its AdminComment.

`squeue` is asked for columns of fixed width, so that no text of a user's (a job's name, a comment) can pass for another
column or another job.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence

from gpusage.boundary import operating_system
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import AnnotatedJob, JobState
from gpusage_slurm import scontrol
from gpusage_slurm.settings import MANAGER
from gpusage_slurm.tres import is_gpu, is_share, parse_tres

JOB_ID = re.compile(r"[0-9]{1,10}([_+][0-9]{1,10})?")
_LISTED_ID = re.compile(r"[0-9]+(_[0-9]+|_\[.*|\+[0-9]+)?")
# An AdminComment has 1,024 bytes at most, so its column never cuts it.
_COLUMNS = (("JobArrayID", 64), ("UserName", 64), ("StateCompact", 4), ("Reason", 64), ("admin_comment", 1100))
PROGRAM_MISSING = "[its program is missing, says gpusage]"
"""What the task epilog (node/task_epilog.sh) appends to a job's comment."""
STATES: Mapping[JobState, tuple[str, ...]] = {
    "waiting": ("PD", "RD", "RF", "RH", "RQ", "SE"),
    "running": ("R", "CF", "CG", "RS", "S", "SI", "SO", "ST"),
}
"""Slurm's codes of each state, which `squeue` takes too (tried on 22.05, 24.11 and 26.05); all others have ended."""

Row = Mapping[str, str]
Columns = tuple[tuple[str, int], ...]
"""Names and widths."""


def sacct_rows_of(job_ids: Sequence[str], fields: Sequence[str]) -> Iterator[list[str]]:
    """Yield the *fields* of each job that slurmdbd remembers; nothing where there is no slurmdbd."""
    for which in scontrol.job_id_options(job_ids):
        try:
            rows = sacct_rows(which, "--starttime=1970-01-01", fields=fields)
        except RequestError:
            return
        yield from rows


def sacct_rows(*options: str, fields: Sequence[str], deadline_s: float = scontrol.DEADLINE_S) -> Sequence[list[str]]:
    """Return the *fields* of each job that `sacct` lists with *options*.

    Raises:
        RequestError: slurmdbd does not answer within *deadline_s*.
    """
    # A delimiter that nobody could know who named a job, so that no name passes for a field or a job.
    between = secrets.token_hex(8)
    form = ("--allocations", "--noheader", "--parsable2", f"--delimiter={between}", f"--format={','.join(fields)}")
    text = scontrol.run("sacct", *options, *form, deadline_s=deadline_s)
    rows = [line.split(between) for line in text.split("\n")]
    return [cells for cells in rows if len(cells) == len(fields)]


def is_interrupted(exit_code: str, comment: str = "") -> bool:
    """Return whether a failed script ended for a reason from outside, so surely not because it lacked GPU memory.

    Args:
        comment: Where the task epilog notes that a program is missing: srun's status does not tell.
        exit_code: ``STATUS:SIGNAL``, or up to 22.05 `squeue`'s one number for both, as wait(2) has it. Of what is
            neither nothing is known.
    """
    if comment.endswith(PROGRAM_MISSING):
        return True
    status, colon, number = exit_code.partition(":")
    if not status.isdecimal() or (colon and not number.isdecimal()):
        return False
    ended, signal = (int(status), int(number)) if colon else (int(status) >> 8, int(status) & 0x7F)
    return operating_system.is_interrupted(ended, signal)


def find_jobs(job_id: str, user: str) -> tuple[AnnotatedJob, ...] | None:
    """Return the jobs with this id, an array's tasks each for itself, or of this user, else all; see the hook.

    Raises:
        RequestError: Neither slurmctld nor the accounting answers.
    """
    if (job_id and not JOB_ID.fullmatch(job_id)) or not scontrol.has_commands():
        return None
    which = (f"--jobs={job_id}",) if job_id else (f"--user={user}",) if user else ()
    try:
        jobs = tuple(map(annotated_job, squeue_rows("--states=all", *which, columns=_COLUMNS)))
    except RequestError as error:
        if scontrol.UNKNOWN_JOB not in str(error):
            raise
        jobs = ()
    if jobs or not job_id:
        return jobs

    # slurmctld forgets a job MinJobAge after its end; slurmdbd, where there is one, does not.
    return tuple(
        AnnotatedJob(job_id=listed_id, manager=MANAGER, user=owner, state="ended", mark=mark)
        for listed_id, owner, mark in sacct_rows_of([job_id], ("JobID", "User", "AdminComment"))
        if _LISTED_ID.fullmatch(listed_id)
    )


def squeue_rows(*options: str, columns: Columns) -> Iterator[Row]:
    """Yield the *columns* of each job that `squeue` lists with *options*.

    Raises:
        RequestError: slurmctld does not answer.
    """
    form = ",".join(f"{name}:{width}" for name, width in columns)
    text = scontrol.run_bytes("squeue", "--noheader", "--all", *options, f"--Format={form}")
    return parse_squeue_rows(text, columns)


def possible_shares(states: str) -> list[str]:
    """Return the jobs in *states*, an option of `squeue`, that may have a share; a GPU of a type may be a slice.

    The columns are short, so that a long answer can be asked for few jobs.
    """
    return [
        row["JobArrayID"]
        for row in squeue_rows(states, columns=(("JobArrayID", 64), ("tres-per-node", 128)))
        if any(is_share(each) or (is_gpu(each) and each.kind) for each in parse_tres(row["tres-per-node"]))
    ]


def squeue_rows_of(job_ids: Sequence[str], *options: str, columns: Columns) -> Iterator[Row]:
    """Yield the jobs with *job_ids* as `squeue_rows` does."""
    for which in scontrol.job_id_options(job_ids):
        yield from squeue_rows(*options, which, columns=columns)


def parse_squeue_rows(text: bytes, columns: Columns) -> Iterator[Row]:
    """Yield the columns of each line that is as long as they are, and begins with a job's id.

    A user's text may have line breaks. It then makes lines that are shorter, because the text is cut at its own column.
    """
    for line in text.split(b"\n"):
        row, begin = {}, 0
        for name, width in columns:
            # squeue counts bytes, so the line is cut before it is decoded.
            value = line[begin : begin + width].decode("utf-8", "replace").strip()
            row[name] = "" if value == "(null)" else value
            begin += width
        if len(line) == begin and _LISTED_ID.fullmatch(row["JobArrayID"]):
            yield row


def annotated_job(row: Row, stuck: str = "") -> AnnotatedJob:
    """Return the job in *row*."""
    code, nodes = row["StateCompact"], row.get("NodeList", "")
    state: JobState = next((state for state, codes in STATES.items() if code in codes), "ended")

    # No share is on several nodes, so a list of them is not taken apart.
    is_one_node = state == "running" and nodes and not re.search(r"[\[,]", nodes)
    return AnnotatedJob(
        job_id=row["JobArrayID"],
        manager=MANAGER,
        user=row["UserName"],
        state=state,
        mark=row["admin_comment"],
        waits_for=row["Reason"] if state == "waiting" else "",
        stuck=stuck,
        nodes=(nodes,) if is_one_node else (),
    )


def update_job(job_id: str, *settings: str) -> None:
    """Change a job, or all tasks of an array that still wait, by `scontrol update`.

    Args:
        job_id: As `squeue_rows` has it.
        settings: ``KEY=VALUE``.

    Raises:
        RequestError: slurmctld refuses, or no task of the array waits any more.
    """
    name: str | None = job_id
    if "_[" in job_id and not job_id.endswith("]"):
        # An array's long list of tasks, ``12_[1,3,7,``, is cut off by its column; `--format=%i` has all of it.
        base = base_id(job_id)
        listed = scontrol.run("squeue", "--noheader", "--all", "--states=PENDING", f"--jobs={base}", "--format=%i")
        name = next((line.strip() for line in listed.splitlines() if line.startswith(f"{base}_[")), None)
        if name is None:
            message = f"Tasks of array {base} must wait to be changed; none does. They are left as they are."
            raise RequestError(message)

    # An array's limit on tasks at once, 12_[1-9%2], is no part of its name.
    scontrol.run("scontrol", "update", f"JobId={re.sub(r'%[0-9]+', '', str(name))}", *settings)


def base_id(job_id: str) -> str:
    """Return the number that the tasks of an array, or the parts of a heterogeneous job, have in common."""
    return re.split(r"[_+]", job_id)[0]


def requested_tres(row: Row) -> Mapping[str, str]:
    """Return the resources that the job in *row* requests, by its column ``tres-alloc``: ``cpu``, ``mem``, ..."""
    return dict(word.split("=", 1) for word in row["tres-alloc"].split(",") if "=" in word)
