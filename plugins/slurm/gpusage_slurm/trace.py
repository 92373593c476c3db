"""What `sacct` prints of past jobs -> the jobs that `gpusage simulate` reads.

Assumptions, which docs/simulator.md repeats: a job stays on the GPU type on which it ran; its time there is its time
alone; a job that had a share asked for one GPU; the site's comment names its model where Slurm keeps comments; a time
limit is what backfill plans by.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from gpusage_hooks.errors import RequestError
from gpusage_slurm.tres import is_gpu, is_share, parse_list

NEEDED = ("JobID", "User", "Submit", "ElapsedRaw", "TimelimitRaw", "AllocTRES")
COMMAND = f"sacct --allusers --allocations --parsable2 --format={','.join((*NEEDED, 'Comment'))}"
COLUMNS = ("job_id", "user", "submit_time", "duration", "time_limit", "gpu_num", "gpu_type", "model")
SECONDS = 60
MODEL = "model="


def print_trace(sacct_file: Path) -> None:
    """Print the jobs of a file that `sacct` wrote, as CSV for `gpusage simulate`."""
    try:
        text = sacct_file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        message = f"File {str(sacct_file)!r} must be readable; got: {error.strerror}. Check the path."
        raise RequestError(message) from error
    click.echo(trace_of(text, str(sacct_file)), nl=False)


def trace_of(text: str, origin: str) -> str:
    """Return the jobs of *text*, what ``sacct --parsable2`` printed, as CSV with a line of names.

    Raises:
        RequestError: A column is missing, or a cell is not what sacct writes.
    """
    page = io.StringIO(newline="")
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_rows(text, origin))
    return page.getvalue()


def _rows(text: str, origin: str) -> Iterator[tuple[str, ...]]:
    lines = text.splitlines()
    names = lines[0].split("|") if lines else []
    missing = [name for name in NEEDED if name not in names]
    if missing:
        got = repr(lines[0][:80]) if lines else "nothing"
        message = f"File {origin!r} must have the column {missing[0]!r}; got {got}. Write it with: {COMMAND}"
        raise RequestError(message)
    for number, line in enumerate(lines[1:], start=2):
        # A comment may have bars of its own; it is the last column.
        cells = dict(zip(names, line.split("|", len(names) - 1), strict=False))
        if len(cells) < len(names):
            rule = f"Line {number} of {origin!r} must have {len(names)} cells; got {len(cells)}."
            message = f"{rule} Write the file with: {COMMAND}"
            raise RequestError(message)
        row = _row(cells, f"{origin}, line {number}")
        if row is not None:
            yield row


def _row(cells: Mapping[str, str], where: str) -> tuple[str, ...] | None:
    """Return the job's cells; ``None`` where it had no GPU, never ran, or is a step of a job."""
    resources = parse_list(cells["AllocTRES"])
    gpus = [one for one in resources if is_gpu(one)]
    kinds = [one for one in gpus if one.kind is not None]
    count = sum(one.count or 0 for one in kinds or gpus) or int(any(is_share(one) for one in resources))
    elapsed = cells["ElapsedRaw"]
    if not elapsed.isdecimal():
        rule = f"Column 'ElapsedRaw' of {where} must be whole seconds; got {elapsed[:80]!r}."
        message = f"{rule} Write the file with: {COMMAND}"
        raise RequestError(message)
    if not count or elapsed == "0" or "." in cells["JobID"]:
        return None
    limit = cells["TimelimitRaw"]
    kind = next((one.kind or "" for one in kinds), "")
    limit_s = str(SECONDS * int(limit)) if limit.isdecimal() and int(limit) else ""
    comment = cells.get("Comment", "").strip()
    model = comment.removeprefix(MODEL) if comment.startswith(MODEL) else ""
    return cells["JobID"], cells["User"], cells["Submit"], elapsed, limit_s, str(count), kind, model
