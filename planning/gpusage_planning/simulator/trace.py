"""Jobs of a trace: CSV, or Parquet where pyarrow is there, with the columns of Helios's and Philly's traces.

Columns: ``job_id``, ``submit_time``, ``duration`` (or ``start_time`` and ``end_time``) and ``gpu_num`` must be there;
``user``, ``gpu_type``, ``model`` with its options (``resnet50.onnx,batch=64``) and ``time_limit`` may be; others are
passed over. Philly's ``jobid``, ``submitted_time`` and ``num_gpus`` are known as well. Times are seconds, or dates such
as ``2020-04-01 00:00:00``. A ``gpu_num`` below 1 is a part of one GPU. Readers of other formats (`formats`) may give a
model of the zoo, with its ``workload``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

import numpy as np

from gpusage.cli.table_file import LONGEST_TEXT, Cells, Row
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Workload
from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_planning.capacity.problem import LONGEST_DAYS, LONGEST_S
from gpusage_planning.simulator.contract import UNSAID, Jobs, Kind
from gpusage_planning.simulator.fleet import Fleet

ALIASES: Mapping[str, Sequence[str]] = {
    "job_id": ("jobid", "job_name"),
    "submit_time": ("submitted_time", "timestamp"),
    "duration": ("run_time",),
    "gpu_num": ("num_gpus", "num_gpu", "gpu_count"),
    "user": ("user_id",),
    "start_time": (),
    "end_time": (),
    "gpu_type": (),
    "model": (),
    "time_limit": ("timelimit",),
}
"""Each column with its other names; its own goes first."""
WHAT = "Jobs file"
LARGEST = 1e12
"""Of a number in a cell; so no product of two is without end."""


_KindKey = tuple[str, str, int, Workload | None]
"""Model, GPU type, part of a GPU in percent, and how the model is run: a million rows make no `Kind` each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a file holds.

    Attributes:
        lines: Where each job stands in the file, in the jobs' order.
        left_out: Lines of jobs without a GPU, that never ran, or that ran for too long to be believed.
        elsewhere: How many jobs ran on GPUs that the cluster does not have, by the GPUs.
    """

    jobs: Jobs
    lines: Sequence[int]
    left_out: int
    origin: str
    elsewhere: Counter[str]


@dataclass(slots=True)
class _Columns:
    """What is read so far; kinds and users are numbered as they come."""

    ids: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    numbers: list[tuple[float, float, float, int, int, int]] = field(default_factory=list)
    kinds: dict[_KindKey, int] = field(default_factory=dict)
    users: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    elsewhere: Counter[str] = field(default_factory=Counter)
    has_dates: bool | None = None


def trace_of(rows: Iterable[tuple[int, Row]], origin: str, fleet: Fleet, *, is_foreign: bool = False) -> Trace:
    """Return the jobs of *rows*, each with its line, in the order of their submission.

    Args:
        rows: With the columns of this module.
        origin: Where they are from, for people.
        fleet: The cluster.
        is_foreign: Whether they are of another cluster, or of one that has changed: jobs on GPUs that are not there are
            left out, and ids may come twice.

    Raises:
        RequestError: A cell is not what it may be, or a job fits nowhere; one sentence, with line and column.
    """
    columns, limits = _Columns(), _Limits(fleet, is_foreign=is_foreign)
    for line, row in rows:
        _Job(row, f"{origin}, line {line}", limits).add_to(columns, line)
    if not columns.ids:
        rule = "at least one job that ran on GPUs of the cluster"
        message = f"{WHAT} {origin!r} must have {rule}; got none. Name another file."
        raise RequestError(message)
    if not is_foreign:
        _require_single(columns, origin)

    submit_s, work_s, limit_s, gpu_count, kind, user = np.array(columns.numbers).T
    order = np.argsort(submit_s, kind="stable")
    jobs = Jobs(
        ids=[columns.ids[place] for place in order],
        submit_s=submit_s[order],
        work_s=work_s[order],
        limit_s=limit_s[order],
        gpu_count=gpu_count[order].astype(np.int32),
        kind=kind[order].astype(np.int32),
        user=user[order].astype(np.int32),
        kinds=tuple(_kind(*key) for key in columns.kinds),
        users=tuple(columns.users),
    )
    lines = [columns.lines[place] for place in order]
    return Trace(jobs=jobs, lines=lines, left_out=columns.left_out, origin=origin, elsewhere=columns.elsewhere)


class _Limits:
    """What the cluster has: the most GPUs of any type, and of each by its names."""

    def __init__(self, fleet: Fleet, *, is_foreign: bool) -> None:
        self.is_foreign = is_foreign
        self.names = [one.name for one in fleet.types]
        self.counts: dict[str, int] = {"": max((one.gpu_count for one in fleet.types), default=0)}
        self.canonical: dict[str, str] = {"": ""}

        for one in fleet.types:
            for name in {one.name, one.gpu.name if one.gpu else one.name}:
                self.counts[name.casefold()] = max(one.gpu_count, self.counts.get(name.casefold(), 0))
                self.canonical.setdefault(name.casefold(), one.name)


class _Job(Cells):
    """The cells of one job."""

    def __init__(self, row: Row, where: str, limits: _Limits) -> None:
        super().__init__(row, where)
        self.limits = limits

    def add_to(self, columns: _Columns, line: int) -> None:
        """Add the job, or count it as left out."""
        (gpu_count, share_percent), submit_s = self._request(), self._time("submit_time")
        is_date = not _is_number(self.text("submit_time"))
        if columns.has_dates not in {None, is_date}:
            self.refuse("submit_time", f"{'a date' if columns.has_dates else 'seconds'}, as on the lines before")
        columns.has_dates = is_date
        work_s = self._duration()
        if work_s > LONGEST_S and not self.limits.is_foreign:
            name = "duration" if self.text("duration") else "end_time"
            self.refuse(name, f"such that the job runs for at most {LONGEST_DAYS} days, in seconds")
        if gpu_count == 0 or not 0 < work_s <= LONGEST_S:
            columns.left_out += 1
            return
        if self.limits.is_foreign and (missing := self._not_there(gpu_count)):
            columns.elsewhere[missing] += 1
            return

        workload = self.row.get("workload")
        run = workload if isinstance(workload, Workload) else None
        kind = (self.text("model"), self._gpu_type(gpu_count), share_percent, run)
        limit_s = self.number("time_limit", above=0.0, most=LARGEST) if self.text("time_limit") else work_s
        number = columns.kinds.setdefault(kind, len(columns.kinds))
        user = columns.users.setdefault(self.text("user") or "unknown", len(columns.users))
        # Some traces number no jobs.
        is_numbered = "job_id" in self.row
        columns.ids.append(self.text("job_id") or (self.refuse("job_id", "a name") if is_numbered else str(line)))
        columns.lines.append(line)
        columns.numbers.append((submit_s, work_s, limit_s, gpu_count, number, user))

    def _duration(self) -> float:
        if self.text("duration") or not self.text("start_time"):
            return self.number("duration", most=LARGEST)
        duration_s = self._time("end_time") - self._time("start_time")
        return duration_s if duration_s >= 0 else self.refuse("end_time", "no earlier than 'start_time'")

    def _not_there(self, gpu_count: int) -> str:
        """Return what GPUs the job had, where the cluster does not have them; else nothing."""
        name = self.text("gpu_type")
        if gpu_count <= self.limits.counts.get(name.casefold(), 0):
            return ""
        return f"{gpu_count} of {name or 'one type'}" if name.casefold() in self.limits.counts else name

    def _gpu_type(self, gpu_count: int) -> str:
        """Return the site's name of the type that the job insists on, empty for any."""
        name = self.text("gpu_type").casefold()
        if name not in self.limits.counts:
            self.refuse("gpu_type", f"one of the cluster's, {', '.join(self.limits.names)}")
        most = self.limits.counts[name]
        if gpu_count > most:
            self.refuse("gpu_num", f"at most {most}, all GPUs of a type that the cluster has")
        return self.limits.canonical[name]

    def _request(self) -> tuple[int, int]:
        """Return how many GPUs the job asks for, and which part of each, in percent."""
        number = self.number("gpu_num", most=LARGEST)
        if 0 < number < 1:
            return 1, max(math.ceil(round(WHOLE_PERCENT * number, 6)), 1)
        if number != int(number):
            self.refuse("gpu_num", "a whole number of at least 0, or a part of one GPU")
        return int(number), WHOLE_PERCENT

    def _time(self, name: str) -> float:
        text = self.text(name)
        try:
            return self.number(name, most=LARGEST) if _is_number(text) else seconds_of(text)
        except (ValueError, OverflowError):
            self.refuse(name, "seconds, or a date such as 2020-04-01 00:00:00")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def seconds_of(text: str) -> float:
    """Return the seconds since 1970 of a date, of Greenwich where it names no zone.

    Raises:
        ValueError: It is no date.
    """
    moment = datetime.fromisoformat(text.replace("Z", "+00:00").replace(" UTC", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def usual_names(names: Sequence[str], origin: str) -> list[str]:
    """Return *names* with the usual ones in place of others, and see that none is missing.

    Raises:
        RequestError: One is.
    """
    usual = {alias: name for name, aliases in ALIASES.items() for alias in aliases if name not in names}
    known = [usual.get(name, name) for name in names]
    times = ("duration",) if not {"start_time", "end_time"} <= {*known} else ()
    for name in ("submit_time", *times, "gpu_num"):
        if name not in known:
            got = ", ".join(names) or "an empty file"
            message = f"{WHAT} {origin!r} must have a column {name!r}; got {got}. Add it."
            raise RequestError(message)

    return known


def _require_single(columns: _Columns, origin: str) -> None:
    if len(set(columns.ids)) == len(columns.ids):
        return

    first: dict[str, int] = {}
    for job, line in zip(columns.ids, columns.lines, strict=True):
        if job in first:
            message = (
                f"Column 'job_id' of {origin}, line {line} must differ from job to job; got {job[:LONGEST_TEXT]!r} as "
                f"on line {first[job]}. Rename it, or take the line out."
            )
            raise RequestError(message)
        first[job] = line


def _kind(model: str, gpu_type: str, share_percent: int, workload: Workload | None) -> Kind:
    share = "" if share_percent == WHOLE_PERCENT else f"{share_percent} % of a GPU"
    return Kind(
        name=", ".join(text for text in (model or "no model", gpu_type, share) if text),
        model=model or None,
        workload=workload or UNSAID,
        gpu_type=gpu_type or None,
        share_percent=share_percent,
    )
