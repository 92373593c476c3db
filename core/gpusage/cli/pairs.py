"""Pairs of jobs that a site measured side by side, and partners predicted by what they show.

A file of pairs is CSV or Parquet: our own columns ``model``, ``beside``, ``slowdown`` and, where it was one GPU type,
``gpu_type``; or a table of `gpusage profile`, whose pairs are read against each job's rate alone, shared the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import groupby, permutations
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

import numpy as np

from gpusage.cli import options
from gpusage.cli.partners import predict_need
from gpusage.cli.table_file import LONGEST_TEXT, Cells, read_rows
from gpusage.decisions.advisor import advisor
from gpusage.predictors.artifacts import ACTIVE_ARTIFACTS, pretrained
from gpusage.predictors.sharing.colocation import features_of, learn_pairs
from gpusage.reports.joining import grouped
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_hooks.types import Gpu, ModelRequest

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
LEAST_SLOWDOWN, MOST_SLOWDOWN = 0.5, 10_000.0
"""What can have been measured; a little below 1 is noise."""


class Pair(NamedTuple):
    """How many times as long a job takes beside another; ``gpu`` is empty where it holds on every type."""

    job: ModelRequest
    partner: ModelRequest
    gpu: str
    slowdown: float


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of the file at *path*.

    Raises:
        RequestError: It cannot be read, or a cell is not what it may be; one sentence, with line and column.
    """
    lines = [Cells(row, f"{path}, line {line}") for line, row in read_rows(path, WHAT, _names)]
    pairs = [*(_profiled(lines) if lines and "item" in lines[0].row else map(_own, lines))]
    if not pairs:
        message = f"{WHAT} {str(path)!r} must have at least one pair; got none. Name another file."
        raise RequestError(message)
    return pairs


@contextmanager
def learning(path: Path, gpu: Gpu) -> Iterator[None]:
    """Let partners on *gpu* be predicted by the pairs of the file at *path*; its paths count from its folder.

    Raises:
        GpuUsageError: It cannot be read, one of its models cannot, or it has no pair on *gpu*.
    """
    find = advisor().catalogue.find
    pairs = (pair for pair in read_pairs(path) if not pair.gpu or find(pair.gpu) == gpu)
    slowdowns = grouped(((pair.job, pair.partner), pair.slowdown) for pair in pairs)
    if not slowdowns:
        message = f"{WHAT} {str(path)!r} must have a pair on {gpu.name}; got pairs on other GPUs. Name another --gpu."
        raise RequestError(message)

    jobs = list(dict.fromkeys(job for pair in slowdowns for job in pair))
    needs = [predict_need(job, gpu, path.parent) for job in jobs]
    throughputs = np.full((len(jobs), len(jobs)), np.nan)
    for (job, partner), values in slowdowns.items():
        throughputs[jobs.index(job), jobs.index(partner)] = 1.0 / geometric_mean(values)

    artifacts = copy(pretrained())
    models = [need.parameter_count for need in needs]
    artifacts.colocation = learn_pairs(artifacts.colocation, features_of(needs), models, throughputs)
    before = ACTIVE_ARTIFACTS.set(artifacts)
    try:
        yield
    finally:
        ACTIVE_ARTIFACTS.reset(before)


def _own(line: Cells) -> Pair:
    slowdown = line.number("slowdown", above=0.0)
    if not LEAST_SLOWDOWN <= slowdown <= MOST_SLOWDOWN:
        line.refuse("slowdown", f"from {LEAST_SLOWDOWN:g} to {MOST_SLOWDOWN:g} times as long as alone")
    job, partner = (_request(line, name) for name in ("model", "beside"))
    return Pair(job=job, partner=partner, gpu=line.text("gpu_type"), slowdown=slowdown)


def _request(line: Cells, name: str) -> ModelRequest:
    text = line.text(name) or line.refuse(name, "a model with its options")
    try:
        return options.read_request(text, {})
    except GpuUsageError as error:
        message = f"Column {name!r} of {line.where} must be a model with its options; got: {error}"
        raise RequestError(message) from error


def _profiled(lines: Sequence[Cells]) -> Iterator[Pair]:
    """Yield both sides of each pair that succeeded on both, of jobs that were measured alone as well."""
    fine = [line for line in lines if line.text("status") == "ok" and line.text("sharing") != "cpu"]
    alone_per_s = {
        (sharing, _job(line), line.text("gpu")): line.number("steps_per_s", above=0.0)
        for line in fine
        for sharing, way in _ALONE.items()
        if (line.text("kind"), line.text("thread_percent").removesuffix(".0")) == way
    }

    for _, sides in groupby((line for line in fine if line.text("kind") == "pair"), lambda line: line.text("item")):
        pair = [(line, alone_per_s.get((line.text("sharing"), _job(line), line.text("gpu")))) for line in sides]
        if len(pair) != len(("job", "partner")) or not all(rate for _, rate in pair):
            continue
        for (line, rate), (other, _) in permutations(pair):
            job, partner = (options.read_request(_job(each), {}) for each in (line, other))
            slowdown = (rate or 0.0) / line.number("steps_per_s", above=0.0)
            if not LEAST_SLOWDOWN <= slowdown <= MOST_SLOWDOWN:
                rule = f"from 1/{MOST_SLOWDOWN:g} to {1 / LEAST_SLOWDOWN:g} of the rate alone"
                line.refuse("steps_per_s", rule)
            yield Pair(job=job, partner=partner, gpu=line.text("gpu"), slowdown=slowdown)


def _job(line: Cells) -> str:
    """Return a line's job as users write it."""
    run = (f"batch={line.text('batch_size')}", f"mode={line.text('mode')}", f"precision={line.text('precision')}")
    shapes = (f"shape={shape}" for shape in line.text("shape").split(";") if shape)
    return ",".join((line.text("model"), *run, *shapes))


def _names(names: Sequence[str], origin: str) -> Sequence[str]:
    needed = PROFILED if "item" in names else OWN
    missing = next((name for name in needed if name not in names), None)
    if missing is not None:
        got = ", ".join(names)[:LONGEST_TEXT] or "an empty file"
        message = f"{WHAT} {origin!r} must have a column {missing!r}; got {got}. lab/docs/simulator.md has the columns."
        raise RequestError(message)
    return names
