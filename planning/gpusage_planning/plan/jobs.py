"""The jobs that `gpusage plan` plans: a CSV file, one job a line.

Columns: ``job_id``; ``model`` with its options, or step times in seconds in columns ``GPU:COUNT`` such as ``v100:2``;
``steps`` (1 where it is left out); ``submitted``, ``deadline``, ``late_price_per_hour``, ``priority``; ``max_gpus``,
the most GPUs that a job with a model may have; ``checkpoint``, how much work it does between two saves. Times are
seconds, or as in ``8h``; all count from one moment.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gpusage.boundary.typed_documents import nearest_key
from gpusage.cli.options import duration_s
from gpusage.cli.user_file import read_text
from gpusage_hooks.errors import RequestError
from gpusage_hooks.units import MIB
from gpusage_planning.capacity.problem import PlannedJob

MAXIMUM_BYTES = 256 * MIB
MOST = 1e9
"""Of anything: steps, seconds, a price. The products of larger ones exceed what the solver can distinguish."""
COLUMNS = (
    "job_id",
    "model",
    "steps",
    "submitted",
    "deadline",
    "late_price_per_hour",
    "priority",
    "max_gpus",
    "checkpoint",
)
MOST_GPUS = 64
_MEASURED = re.compile(r"(.+):([1-9]\d?)")
_OF_SEVERAL_PARTS = re.compile(r".+:.+:(?!1\Z)[1-9]\d?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One job as it is written down, with where it stands.

    Attributes:
        step_times_s: By GPU and number of GPUs.
        max_gpus: How many GPUs it may have at most; for a model.
        checkpoint_s: It saves after each so much work; infinity where it does not.
    """

    where: str
    job_id: str
    model: str
    steps: float | None
    submitted_s: float
    deadline_s: float | None
    late_price_per_hour: float
    priority: float
    max_gpus: int
    checkpoint_s: float
    step_times_s: Mapping[tuple[str, int], float]

    def job(self, times_s: Mapping[tuple[str, int], float]) -> PlannedJob:
        """Return the job that takes *times_s*."""
        return PlannedJob(
            name=self.job_id,
            times_s=times_s,
            submitted_s=self.submitted_s,
            deadline_s=self.deadline_s,
            late_price_per_hour=self.late_price_per_hour,
            priority=self.priority,
            checkpoint_s=self.checkpoint_s,
        )


def read_lines(path: Path) -> list[Line]:
    """Return the jobs of the file at *path*, as they are written down.

    Raises:
        RequestError: It cannot be read, or a cell is not what it may be; the sentence has line and column.
    """
    return parse_lines(read_text(path, "Jobs file", MAXIMUM_BYTES), str(path))


def parse_lines(text: str, origin: str) -> list[Line]:
    """Return the jobs of *text*; *origin* is its file, for people."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    try:
        names = list(reader.fieldnames or ())
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        message = f"Jobs file {origin!r} must be CSV; got, on line {reader.line_num}: {error}. Fix it."
        raise RequestError(message) from error
    _require_columns(names, origin)
    if not rows:
        message = f"Jobs file {origin!r} must have at least one job below its line of names; got none. Add one."
        raise RequestError(message)
    lines = [_Cells(row, f"{origin}, line {number}").line() for number, row in rows]
    _require_single(lines)
    return lines


def _require_columns(names: Sequence[str], origin: str) -> None:
    strays = [name for name in names if name not in COLUMNS and not _MEASURED.fullmatch(name)]
    if strays:
        hint = nearest_key(strays[0], (*COLUMNS, "GPU:COUNT"))
        message = f"Column {strays[0]!r} of jobs file {origin!r} must be one that gpusage knows. {hint}"
        raise RequestError(message)
    several = list(filter(_OF_SEVERAL_PARTS.fullmatch, names))
    if several:
        part, _, count = several[0].rpartition(":")
        message = (
            f"Column {several[0]!r} of jobs file {origin!r} must be for one part of a GPU, for no job has several; got "
            f"{count}. Write '{part}:1'."
        )
        raise RequestError(message)
    uneven = [name for name in names if (match := _MEASURED.fullmatch(name)) and int(match[2]).bit_count() > 1]
    if uneven:
        message = (
            f"Column {uneven[0]!r} of jobs file {origin!r} must be for 1, 2, 4 or another power of two of GPUs; got "
            f"{uneven[0].rpartition(':')[2]}. Take it out."
        )
        raise RequestError(message)
    if "job_id" not in names:
        message = (
            f"Jobs file {origin!r} must have a column 'job_id'; got {', '.join(names) or 'an empty file'}. Add it."
        )
        raise RequestError(message)
    if "model" not in names and all(name in COLUMNS for name in names):
        message = f"Jobs file {origin!r} must have a column 'model', or one such as 'v100:1'; got neither. Add one."
        raise RequestError(message)


def _require_single(lines: Iterable[Line]) -> None:
    places: dict[str, str] = {}
    for line in lines:
        if line.job_id in places:
            message = (
                f"Column 'job_id' on {line.where} must differ from job to job; got {line.job_id!r} again. Rename it."
            )
            raise RequestError(message)
        places[line.job_id] = line.where


class _Cells:
    """The cells of one line."""

    def __init__(self, row: Mapping[str | None, str | list[str] | None], where: str) -> None:
        if None in row:
            message = f"Jobs file must have as many cells on each line as names; got more on {where}. Fix it."
            raise RequestError(message)
        self.cells = {str(name): (str(text) if text is not None else "").strip() for name, text in row.items()}
        self.where = where

    def line(self) -> Line:
        """Return what the cells say."""
        line = Line(
            where=self.where,
            job_id=self.cells["job_id"] or self._refuse("job_id", "a name"),
            model=self.cells.get("model", ""),
            steps=self._number("steps", above=0.0),
            submitted_s=self._time("submitted") or 0.0,
            deadline_s=self._time("deadline"),
            late_price_per_hour=self._number("late_price_per_hour") or 0.0,
            priority=self._number("priority") or 0.0,
            max_gpus=self._gpus(),
            checkpoint_s=self._time("checkpoint") or math.inf,
            step_times_s=self._step_times(),
        )
        if line.deadline_s is not None and line.deadline_s <= line.submitted_s:
            self._refuse("deadline", "after the job's submission")
        if not line.model and not line.step_times_s:
            self._refuse("model", "a model, or the line must have a step time")
        return line

    def _step_times(self) -> dict[tuple[str, int], float]:
        times = {}
        for name in self.cells:
            match = _MEASURED.fullmatch(name)
            if match and self.cells[name]:
                times[match[1], int(match[2])] = self._number(name, above=0.0) or 0.0
        return times

    def _gpus(self) -> int:
        count = self._number("max_gpus") or 1.0
        return (
            int(count)
            if count == int(count) and 1 <= count <= MOST_GPUS
            else self._refuse("max_gpus", f"a whole number from 1 to {MOST_GPUS}")
        )

    def _number(self, name: str, above: float | None = None) -> float | None:
        text = self.cells.get(name, "")
        if not text:
            return None
        least = "of at least 0" if above is None else f"above {above:g}"
        rule = f"a number {least}, and at most {MOST:g}"
        try:
            number = float(text)
        except ValueError:
            self._refuse(name, rule)
        if not 0 <= number <= MOST or (above is not None and number <= above):
            self._refuse(name, rule)
        return number

    def _time(self, name: str) -> float | None:
        text = self.cells.get(name, "")
        try:
            time_s = duration_s(text) if text else None
        except ValueError:
            time_s = -1.0
        if time_s is not None and not 0 <= time_s <= MOST:
            self._refuse(name, f"a time of at least 0, in seconds or such as 8h, and at most {MOST:g} s")
        return time_s

    def _refuse(self, name: str, rule: str) -> NoReturn:
        value = self.cells.get(name, "")
        got = repr(value[:80]) if value else "nothing"
        message = f"Column {name!r} on {self.where} must be {rule}; got {got}. Fix it."
        raise RequestError(message)
