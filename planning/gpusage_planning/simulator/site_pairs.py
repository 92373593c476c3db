"""Pairs of jobs that a site measured: how many times as long a job takes beside another as alone.

The file is CSV or Parquet: our own columns ``model``, ``beside``, ``slowdown`` and, where it was one GPU type,
``gpu_type``; or a table of `gpusage profile`, whose pairs are read against each job's rate alone, shared the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, permutations
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple, NoReturn

import numpy as np

from gpusage.cli import options
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_hooks.types import ModelRequest, Workload
from gpusage_planning.simulator.fleet import Fleet, GpuType
from gpusage_planning.simulator.foresight import FloatArray
from gpusage_planning.simulator.jobs import Kind
from gpusage_planning.simulator.models import Models
from gpusage_planning.simulator.rows import Row, read_rows
from gpusage_planning.zoo import load_zoo

WHAT = "Pairs file"
OWN = ("model", "beside", "slowdown")
PROFILED = (
    "item",
    "kind",
    "status",
    "sharing",
    "model",
    "batch_size",
    "mode",
    "precision",
    "shape",
    "steps_per_s",
    "gpu",
)
_ALONE = {"mps": ("share", "100"), "time-slicing": ("solo", "")}
"""What a pair is compared with, by how it shared the GPU: kind and thread percentage."""
LONGEST_TEXT = 80
LEAST_SLOWDOWN, MOST_SLOWDOWN = 0.5, 10_000.0
"""What can have been measured; a little below 1 is noise."""


class Pair(NamedTuple):
    """How many times as long a job takes beside another; ``gpu`` is empty where it holds on every type."""

    job: ModelRequest
    partner: ModelRequest
    gpu: str
    slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """What was measured of the kinds of a simulation.

    Attributes:
        pair_throughputs: For each GPU type, the throughput of each row with each column, relative to alone; NaN where
            it was not measured.
        pair_count: Pairs of the file.
        used_count: Those of them that kinds of the simulation are of.
    """

    pair_throughputs: Sequence[FloatArray]
    pair_count: int
    used_count: int


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of the file at *path*.

    Raises:
        RequestError: It cannot be read, or a cell is not what it may be; one sentence, with line and column.
    """
    rows = [(f"{path}, line {line}", row) for line, row in read_rows(path, WHAT, _names)]
    pairs = [*_profiled(rows)] if rows and "item" in rows[0][1] else [_own(row, where) for where, row in rows]
    if not pairs:
        message = f"{WHAT} {str(path)!r} must have at least one pair; got none. Name another file."
        raise RequestError(message)
    return pairs


def measured_of(pairs: Sequence[Pair], kinds: Sequence[Kind], models: Models, fleet: Fleet) -> Measured:
    """Return what *pairs* show of *kinds* on the GPUs of *fleet*: of several values of one pair, the geometric mean."""
    requests = {number: _request_of(kinds[number], run) for number, run in models.workloads.items()}
    values: dict[tuple[int, int, int], list[float]] = {}
    used: set[int] = set()
    for number, pair in enumerate(pairs):
        for key in _places(pair, requests, fleet.types):
            values.setdefault(key, []).append(pair.slowdown)
            used.add(number)
    pair_throughputs = tuple(np.full((len(kinds), len(kinds)), np.nan) for _ in fleet.types)
    for (place, job, other), slowdowns in values.items():
        pair_throughputs[place][job, other] = min(1.0, 1.0 / geometric_mean(slowdowns))
    return Measured(pair_throughputs=pair_throughputs, pair_count=len(pairs), used_count=len(used))


def _places(
    pair: Pair, requests: Mapping[int, ModelRequest], types: Sequence[GpuType]
) -> Iterator[tuple[int, int, int]]:
    jobs = [kind for kind, request in requests.items() if _is_same(pair.job, request)]
    others = [kind for kind, request in requests.items() if _is_same(pair.partner, request)]
    for place, one in enumerate(types):
        names = {one.name.casefold(), one.gpu.name.casefold() if one.gpu else ""}
        if not pair.gpu or pair.gpu.casefold() in names:
            yield from ((place, job, other) for job in jobs for other in others)


def _request_of(kind: Kind, workload: Workload) -> ModelRequest:
    """Return the model of *kind* without its options, and how it is run."""
    text = kind.model or ""
    name = text if text in load_zoo() else options.read_requests([text], {})[0].model
    return ModelRequest(model=name, workload=workload)


def _is_same(one: ModelRequest, other: ModelRequest) -> bool:
    """Return whether both are one job; a shape that only one of them has is taken for the other's."""
    of, over = one.workload, other.workload
    return (
        (one.model, of.batch_size, of.mode, of.precision) == (other.model, over.batch_size, over.mode, over.precision)
    ) and (of.shape == over.shape or not (of.shape and over.shape))


def _own(row: Row, where: str) -> Pair:
    return Pair(
        job=_request(row, "model", where),
        partner=_request(row, "beside", where),
        gpu=_text(row, "gpu_type"),
        slowdown=_slowdown(row, where),
    )


def _request(row: Row, name: str, where: str) -> ModelRequest:
    text = _text(row, name)
    if not text:
        _refuse(row, name, where, "a model with its options")
    try:
        return options.read_requests([text], {})[0]
    except GpuUsageError as error:
        message = f"Column {name!r} of {where} must be a model with its options; got: {error}"
        raise RequestError(message) from error


def _profiled(rows: Sequence[tuple[str, Row]]) -> Iterator[Pair]:
    """Yield both sides of each pair that succeeded on both, of jobs that were measured alone as well."""
    fine = [(where, row) for where, row in rows if _text(row, "status") == "ok" and _text(row, "sharing") != "cpu"]
    alone = {
        (sharing, _job(row), _text(row, "gpu")): _above_zero(row, "steps_per_s", where)
        for where, row in fine
        for sharing, way in _ALONE.items()
        if (_text(row, "kind"), _text(row, "thread_percent").removesuffix(".0")) == way
    }
    for _, sides in groupby((each for each in fine if _text(each[1], "kind") == "pair"), lambda one: one[1]["item"]):
        pair = [(where, row, alone.get((_text(row, "sharing"), _job(row), _text(row, "gpu")))) for where, row in sides]
        if len(pair) == 2 and all(rate for _, _, rate in pair):  # a pair
            yield from (_side(*own, other[1]) for own, other in permutations(pair))


def _side(where: str, row: Row, alone_per_s: float | None, other: Row) -> Pair:
    job, partner = options.read_requests([_job(row), _job(other)], {})
    slowdown = (alone_per_s or 0.0) / _above_zero(row, "steps_per_s", where)
    if not LEAST_SLOWDOWN <= slowdown <= MOST_SLOWDOWN:
        _refuse(row, "steps_per_s", where, f"from 1/{MOST_SLOWDOWN:g} to {1 / LEAST_SLOWDOWN:g} of the rate alone")
    return Pair(job=job, partner=partner, gpu=_text(row, "gpu"), slowdown=slowdown)


def _slowdown(row: Row, where: str) -> float:
    slowdown = _above_zero(row, "slowdown", where)
    if not LEAST_SLOWDOWN <= slowdown <= MOST_SLOWDOWN:
        _refuse(row, "slowdown", where, f"from {LEAST_SLOWDOWN:g} to {MOST_SLOWDOWN:g} times as long as alone")
    return slowdown


def _job(row: Row) -> str:
    """Return a row's job as users write it."""
    run = (f"batch={_text(row, 'batch_size')}", f"mode={_text(row, 'mode')}", f"precision={_text(row, 'precision')}")
    shapes = (f"shape={shape}" for shape in _text(row, "shape").split(";") if shape)
    return ",".join((_text(row, "model"), *run, *shapes))


def _names(names: Sequence[str], origin: str) -> Sequence[str]:
    needed = PROFILED if "item" in names else OWN
    missing = next((name for name in needed if name not in names), None)
    if missing is not None:
        got = ", ".join(names)[:LONGEST_TEXT] or "an empty file"
        message = f"{WHAT} {origin!r} must have a column {missing!r}; got {got}. docs/simulator.md has the columns."
        raise RequestError(message)
    return names


def _above_zero(row: Row, name: str, where: str) -> float:
    try:
        number = float(_text(row, name))
    except ValueError:
        _refuse(row, name, where, "a number above 0")
    return number if 0 < number < math.inf else _refuse(row, name, where, "a number above 0")


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    return "" if value is None else str(value).strip()


def _refuse(row: Row, name: str, where: str, rule: str) -> NoReturn:
    text = _text(row, name)
    got = repr(text[:LONGEST_TEXT]) if text else "nothing"
    message = f"Column {name!r} of {where} must be {rule}; got {got}. Fix it, or take the line out."
    raise RequestError(message)
