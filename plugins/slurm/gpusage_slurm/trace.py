"""Output of `sacct` on past jobs -> the jobs that `gpusage simulate` reads.

Assumptions, also in lab/docs/simulator.md: a job stays on the GPU type on which it ran; its time there is its time
alone; a job that had a share asked for one GPU; the site's comment names its model where Slurm keeps comments; a time
limit is what backfill plans by.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from gpusage.cli.user_file import require_regular
from gpusage_hooks.comment import is_model_path
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import PastJob
from gpusage_slurm import scontrol
from gpusage_slurm.tres import is_gpu, is_share, parse_tres

REQUIRED_COLUMNS = ("JobID", "User", "Submit", "ElapsedRaw", "TimelimitRaw", "AllocTRES")
OPTIONAL_COLUMNS = ("WorkDir", "Comment")
OPTIONS = ("--allusers", "--allocations", "--parsable2")
COMMAND = (
    f"sacct {' '.join(OPTIONS)} --delimiter=$(cat /proc/sys/kernel/random/uuid)"
    f" --format={','.join((*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS))}"
)
"""What stands between the cells is a word that no user could know, so no comment passes for a job."""
BAR = "|"
SECONDS = 60
MODEL = "model="
# Of a first line: a large file of another kind is not read whole.
LONGEST_HEAD = 4096
MOST_DIGITS = 18
DEADLINE_S = 600.0
"""A large site's month is some hundred thousand jobs."""


def read_past_jobs(path: str) -> Sequence[PastJob] | None:
    """Return the jobs of the file at *path*; ``None`` where its first line is not of ``sacct --parsable2``.

    Raises:
        RequestError: As `past_jobs`.
    """
    require_regular(Path(path), "File")
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            head = file.readline(LONGEST_HEAD)
            names = head.rstrip("\n").split(_delimiter_of(head))
            text = head + file.read() if REQUIRED_COLUMNS[0] in names else None
    except OSError:
        return None  # whoever reads it next says so

    return None if text is None else [*past_jobs(text, path)]


def collect_past_jobs(since_s: float) -> tuple[PastJob, ...]:
    """Return the jobs since *since_s*, in seconds since 1970, that this user may see.

    Raises:
        RequestError: Slurm keeps no accounting, or does not answer.
    """
    scontrol.require_slurmdbd()
    columns = ",".join((*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS))
    options = (f"--delimiter={uuid.uuid4()}", f"--starttime={scontrol.local_time(since_s)}", f"--format={columns}")
    return tuple(past_jobs(scontrol.run("sacct", *OPTIONS, *options, deadline_s=DEADLINE_S), "sacct"))


def past_jobs(text: str, origin: str) -> Iterator[PastJob]:
    """Yield the jobs of *text*, output of ``sacct --parsable2``, that ran on GPUs.

    A comment, the last column, may have bars and line breaks of its own. Between bars, such a line may pass for a job.

    Raises:
        RequestError: A column is missing, or a cell is not what sacct writes.
    """
    lines = text.rstrip("\n").split("\n")
    between = _delimiter_of(lines[0])
    names = lines[0].split(between)
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    if missing:
        got = repr(lines[0][:80]) if text else "nothing"
        message = f"File {origin!r} must have the column {missing[0]!r}; got {got}. Write it with: {COMMAND}"
        raise RequestError(message)

    for number, line in enumerate(lines[1:], start=2):
        cells = dict(zip(names, line.split(between, len(names) - 1), strict=False))
        if len(cells) < len(names) and between != BAR:
            continue  # the rest of a comment
        if len(cells) < len(names):
            rule = f"Line {number} of {origin!r} must have {len(names)} cells; got {len(cells)}."
            message = f"{rule} Write the file with: {COMMAND}"
            raise RequestError(message)
        job = _past_job(cells, f"{origin}, line {number}")
        if job is not None:
            yield job


def _delimiter_of(head: str) -> str:
    """Return the delimiter of a file whose first line is *head*."""
    match = re.match(f"{REQUIRED_COLUMNS[0]}(.+?){REQUIRED_COLUMNS[1]}", head)
    return match[1] if match and BAR not in head else BAR


def _past_job(cells: Mapping[str, str], where: str) -> PastJob | None:
    """Return the job; ``None`` where it had no GPU, never ran, or is a step of a job."""
    resources = parse_tres(cells["AllocTRES"])
    gpus = [each for each in resources if is_gpu(each)]
    typed = [each for each in gpus if each.kind is not None]  # of which the untyped count is the sum
    count = sum(each.count or 0 for each in typed or gpus) or int(any(map(is_share, resources)))

    elapsed, limit = cells["ElapsedRaw"], cells["TimelimitRaw"]
    if not _is_count(elapsed):
        raise _refusal(where, "whole seconds", ElapsedRaw=elapsed)

    # A step of a job has a dot in its id; its job's own row counts.
    if not count or int(elapsed) == 0 or "." in cells["JobID"]:
        return None
    try:
        submitted_at_s = datetime.fromisoformat(cells["Submit"]).astimezone().timestamp()
    except (ValueError, OverflowError) as error:
        raise _refusal(where, "a time such as 2026-10-01T10:00:00", Submit=cells["Submit"]) from error

    # A path begins in the job's folder, where sbatch looked for it.
    comment, model = cells.get("Comment", "").strip(), None
    if comment.startswith(MODEL):
        model = comment.removeprefix(MODEL)
        if not model.startswith("~") and is_model_path(model):
            model = os.path.join(cells.get("WorkDir", ""), model)  # noqa: PTH118 - any text
    return PastJob(
        job_id=cells["JobID"],
        user=cells["User"],
        submitted_at_s=submitted_at_s,
        duration_s=float(elapsed),
        gpu_count=count,
        gpu_type=next((each.kind for each in typed), None),
        model=model,
        time_limit_s=float(SECONDS * int(limit)) if _is_count(limit) and int(limit) else None,
    )


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= MOST_DIGITS


def _refusal(where: str, rule: str, **cell: str) -> RequestError:
    ((column, text),) = cell.items()
    message = f"Column {column!r} of {where} must be {rule}; got {text[:80]!r}. Write the file with: {COMMAND}"
    return RequestError(message)
