"""Traces as they are published: how each format is recognised, and how its jobs become the rows that `trace` reads.

A reader yields each job's line with a row of the columns that `trace` names. Users, submissions and durations are the
trace's own; a duration of 0 means that the job never ran, or had not ended.

Source:
    The README and the files of msr-fiddle/philly-traces, S-Lab-System-Group/HeliosData, S-Lab-System-Group/Lucid,
    stanford-futuredata/gavel (``scheduler/utils.py``) and alibaba/clusterdata.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, inf
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpusage.cli.table_file import Cells, Names, Row, csv_rows, opened_text, read_rows
from gpusage.cli.user_file import require_readable, require_regular
from gpusage_hooks.errors import RequestError
from gpusage_hooks.job_values import MAXIMUM_COUNT
from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_planning.named_jobs import GAVEL, LUCID, workload
from gpusage_planning.simulator.trace import LARGEST, WHAT, seconds_of, usual_names

Rows = Iterator[tuple[int, Row]]
HEAD_CHARACTERS = 4096
OWN = "table"
"""The format with our own columns."""


class Format(NamedTuple):
    """One form in which jobs are written down.

    Attributes:
        name: As ``--format`` has it.
        matches: Tells whether a file is of it, by the first lines.
        read: Yields the rows of a file; ``None`` where a workload manager's plugin reads it.
        note: What the figures rest on, for people; empty where nothing is to be said.
    """

    name: str
    matches: Callable[[Sequence[str]], bool]
    read: Callable[[Path], Rows] | None
    note: str = ""


def find_format(path: Path, name: str | None = None) -> Format:
    """Return the format called *name*, else the one by which the file at *path* is recognised."""
    by_name = {one.name: one for one in FORMATS}
    if name is not None:
        return by_name[name]
    if path.suffix == ".parquet":
        return by_name[OWN]

    require_regular(path, WHAT)
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            lines = file.read(HEAD_CHARACTERS).lstrip().splitlines() or [""]
    except OSError:
        return by_name[OWN]  # its reader says so

    return next(one for one in FORMATS if one.matches(lines))


# Philly: a list in JSON, each job with its attempts and the GPUs that each of them had.


class _Server(msgspec.Struct):
    gpus: list[str]


class _Attempt(msgspec.Struct):
    start_time: str | None
    end_time: str | None
    detail: list[_Server]


class _PhillyJob(msgspec.Struct):
    jobid: str
    submitted_time: str
    user: str
    attempts: list[_Attempt]


def _philly(path: Path) -> Rows:
    with opened_text(path, WHAT) as file:
        text = file.read()
    for line, item in _json_items(text, str(path)):
        yield line, _philly_row(item, f"line {line} of {str(path)!r}")


def _philly_row(item: object, where: str) -> Row:
    """Return the job; the attempts of which both times are known count, and the first of them has the GPUs."""
    try:
        job = msgspec.convert(item, _PhillyJob)
        ended = [one for one in job.attempts if not {one.start_time, one.end_time} & {None, "", "None"}]
        runs_s = (seconds_of(str(one.end_time)) - seconds_of(str(one.start_time)) for one in ended)
        return {
            "job_id": job.jobid,
            "user": job.user,
            "submit_time": job.submitted_time,
            "duration": sum(max(run_s, 0.0) for run_s in runs_s),
            "gpu_num": sum(len(server.gpus) for server in ended[0].detail) if ended else 0,
        }
    except (msgspec.ValidationError, ValueError) as error:
        message = f"Job on {where} must be one of Philly's; got: {error}. Fix it, or take it out."
        raise RequestError(message) from error


def _json_items(text: str, origin: str) -> Iterator[tuple[int, object]]:
    """Yield each item of the list that *text* is, with its line, one after the other: such files are large."""
    decoder, between = json.JSONDecoder(parse_int=float), re.compile(r"[\s,]*")
    line, counted, position = 1, 0, text.find("[") + 1

    try:
        while not text.startswith("]", position := _end(between, text, position)):
            line, counted = line + text.count("\n", counted, position), position
            item, position = decoder.raw_decode(text, position)
            yield line, item
    except (json.JSONDecodeError, RecursionError) as error:
        place = error.lineno if isinstance(error, json.JSONDecodeError) else line
        message = f"{WHAT} {origin!r} must be a list of jobs in JSON; got, on line {place}: {error}. Fix it."
        raise RequestError(message) from error

    if rest := text[position + 1 :].strip():
        message = f"{WHAT} {origin!r} must end with its list of jobs; got {rest[:20]!r} behind it. Take that out."
        raise RequestError(message)


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


# Alibaba 2020: a task's instances have a part of a GPU each; submissions and users are in a table of their own.

PAI_TASKS = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
PAI_JOBS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
PAI_STATUSES = {"Running", "Terminated", "Failed", "Waiting", "status"}


def _alibaba_2020(path: Path) -> Rows:
    require_readable(path, WHAT)
    jobs = {str(row["job_name"]): row for _, row in _pai_rows(path.with_name("pai_job_table.csv"), PAI_JOBS)}

    for line, row in _pai_rows(path, PAI_TASKS):
        job = jobs.get(str(row["job_name"]), {})
        cells = Cells(row, f"{path}, line {line}")
        names = ("start_time", "end_time", "inst_num", "plan_gpu")
        start_s, end_s, instances, percent = (_number(cells, name) for name in names)
        gpu_count = instances * percent / WHOLE_PERCENT
        yield (
            line,
            {
                "job_id": f"{row['job_name']}/{row['task_name']}",
                "user": job.get("user"),
                "submit_time": job.get("start_time") or start_s,
                "duration": max(end_s - start_s, 0.0) if start_s and end_s else 0.0,
                "gpu_num": gpu_count if instances == 1 and gpu_count < 1 else ceil(gpu_count),
                "gpu_type": row["gpu_type"],
            },
        )


def _pai_rows(path: Path, names: Sequence[str]) -> Rows:
    """Yield the rows of a table that has no line of names, or one."""
    with opened_text(path, WHAT) as file:
        for line, row in csv_rows(file, WHAT, str(path), names):
            if row["job_name"] != "job_name":
                yield line, row


# Alibaba 2023: pods, with thousandths of one GPU, or several whole ones.

OPENB_COLUMNS = {"name", "num_gpu", "gpu_milli", "gpu_spec", "creation_time", "deletion_time", "scheduled_time"}


def _alibaba_2023(path: Path) -> Rows:
    for line, row in read_rows(path, WHAT, _with(OPENB_COLUMNS)):
        cells = Cells(row, f"{path}, line {line}")
        names = ("num_gpu", "gpu_milli", "scheduled_time", "deletion_time")
        count, milli, start_s, end_s = (_number(cells, name) for name in names)
        types = str(row["gpu_spec"] or "")
        yield (
            line,
            {
                "job_id": row["name"],
                "submit_time": row["creation_time"],
                "duration": max(end_s - start_s, 0.0) if row["scheduled_time"] else 0.0,
                "gpu_num": milli / 1000 if count == 1 else count,
                "gpu_type": "" if "|" in types else types,
            },
        )


# Gavel: steps of a model of Gavel's, which its own table of rates turns into time.

GAVEL_CELLS = (7, 10)
RATES = "simulation_throughputs.json"
JOB_TYPE = re.compile(r"(.+?)(?: \(batch size (\d+)\))?")


def _gavel(path: Path) -> Rows:
    rates = _gavel_rates(path)
    with opened_text(path, WHAT) as file:
        for line, text in enumerate(file, start=1):
            cells = text.rstrip("\r\n").split("\t")
            if len(cells) not in GAVEL_CELLS:
                message = f"Line {line} of {str(path)!r} must have 7 or 10 cells, by tabs; got {len(cells)}. Fix it."
                raise RequestError(message)
            yield line, _gavel_row(cells, rates, path, line)


def _gavel_row(texts: Sequence[str], rates: Mapping[tuple[str, int], float], path: Path, line: int) -> Row:
    """Return the job: 7 cells are of Philly's jobs, whose steps were counted at the rate of one GPU; 10 are Gavel's."""
    short = len(texts) == min(GAVEL_CELLS)
    steps, gpus, submit = (texts[place] for place in ((4, 6, 5) if short else (5, 6, 9)))
    model, batch = JOB_TYPE.fullmatch(texts[0]).groups()  # type: ignore[union-attr]  # any text matches
    row: Row = {"job_type": texts[0], "total_steps": steps, "scale_factor": gpus, "batch size": batch}
    cells = Cells(row, f"{path}, line {line}")
    count = _number(cells, "scale_factor")
    rate = rates.get((texts[0], 1 if short else int(count)), 0.0)
    if not 0 < rate < inf:
        cells.refuse("job_type", f"one that has a rate in {RATES}")
    job = GAVEL.get(model)

    return {
        "job_id": line,
        "submit_time": submit,
        "duration": _number(cells, "total_steps") / rate,
        "gpu_num": count,
        "model": job.key if job else None,
        "workload": workload(job, _batch(cells, "batch size")) if job else None,
    }


def _gavel_rates(path: Path) -> Mapping[tuple[str, int], float]:
    """Return the steps per second on V100s, by job type and number of GPUs, from the table above the trace's folder."""
    places = [folder / RATES for folder in path.absolute().parents]
    table = next((place for place in places if place.is_file()), places[0])

    with opened_text(table, "Gavel's table of rates") as file:
        text = file.read()
    try:
        return {
            ast.literal_eval(name): float(rate["null"])
            for name, rate in json.loads(text, parse_int=float)["v100"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, SyntaxError, RecursionError, MemoryError) as error:
        got = str(error) or type(error).__name__
        message = f"File {str(table)!r} must be Gavel's {RATES}; got: {got}. Take it from Gavel's repository."
        raise RequestError(message) from error


# Lucid: Helios's columns, with a model of Lucid's for each job.

LUCID_COLUMNS = {"model", "batchsize", "amp"}


def _lucid(path: Path) -> Rows:
    for line, row in read_rows(path, WHAT, _with(LUCID_COLUMNS, usual_names)):
        job = LUCID.get(str(row["model"]))
        cells = Cells(row, f"{path}, line {line}")
        batch, amp = _batch(cells, "batchsize"), _number(cells, "amp")
        run = workload(job, batch, half=amp > 0) if job else None
        yield line, {**row, "model": job.key if job else None, "workload": run}


def _table(path: Path) -> Rows:
    yield from read_rows(path, WHAT, usual_names)


def _batch(cells: Cells, name: str) -> float:
    """Return a batch size, 1 where none is given."""
    number = _number(cells, name) if cells.text(name) else 1.0
    return number if 1 <= number <= MAXIMUM_COUNT else cells.refuse(name, "a number from 1 to 10^9")


def _number(cells: Cells, name: str) -> float:
    """Return the number in a cell; 0 where there is nothing."""
    return cells.number(name, most=LARGEST) if cells.text(name) else 0.0


def _with(names: set[str], rest: Names = lambda columns, _: columns) -> Names:
    """Return what sees that a file has the columns *names*, and leaves the others to *rest*."""

    def check(columns: Sequence[str], origin: str) -> Sequence[str]:
        missing = sorted(names - {*columns})
        if missing:
            got = ", ".join(columns) or "an empty file"
            message = f"{WHAT} {origin!r} must have a column {missing[0]!r}; got {got}. Add it."
            raise RequestError(message)
        return rest(columns, origin)

    return check


def _columns(lines: Sequence[str]) -> set[str]:
    try:
        return {name.strip() for name in next(csv.reader(lines), [])}
    except csv.Error:
        return set()


def _is_pai(lines: Sequence[str]) -> bool:
    cells = lines[0].split(",")
    return len(cells) == len(PAI_TASKS) and cells[PAI_TASKS.index("status")] in PAI_STATUSES


FORMATS = (
    Format("philly", lambda lines: lines[0].startswith("["), _philly),
    Format(
        "yarn",
        lambda lines: lines[0].startswith("{"),
        None,
        "An application has as many GPUs as its GPU seconds make over its time, rounded up.",
    ),
    Format("sacct", lambda lines: lines[0].startswith("JobID"), None),
    Format(
        "alibaba-2020",
        _is_pai,
        _alibaba_2020,
        "Each task is a job. Tasks of several instances have whole GPUs, as many as the instances' parts add up to.",
    ),
    Format(
        "alibaba-2023",
        lambda lines: _columns(lines) >= OPENB_COLUMNS,
        _alibaba_2023,
        "A pod that names several GPU types may have any.",
    ),
    Format(
        "gavel",
        lambda lines: len(lines[0].split("\t")) in GAVEL_CELLS,
        _gavel,
        f"A job takes its steps over Gavel's own rate on V100s ({RATES}).",
    ),
    Format("lucid", lambda lines: _columns(lines) >= LUCID_COLUMNS | {"job_id"}, _lucid),
    Format("helios", lambda lines: _columns(lines) >= {"job_id", "vc", "gpu_num", "node_num"}, _table),
    Format(OWN, lambda _: True, _table),
)
"""The first one that matches counts."""
