"""Artifacts as they are, shipped or named by the user, asked through the predictors for rows that were measured.

Errors on rows that an artifact was fitted on show how well it fits, not how well it predicts: each line says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpusage.decisions.advisor import Advisor
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.plugins.loading import make_hooks
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.artifacts import pretrained
from gpusage.predictors.intervals import exact_interval, speedup
from gpusage.predictors.sharing.colocation import predict_colocation
from gpusage.predictors.sharing.slowdown import predict_slowdown
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Figure, Interval, ObservedFigures, SoloRun, Workload
from gpusage_hooks.units import GIB
from gpusage_lab.learning import activity_known, activity_rows, memory_unfitted, pairs, random_networks
from gpusage_lab.learning.artifacts import reading
from gpusage_lab.learning.memory_rows import GPU as MEMORY_GPU
from gpusage_lab.learning.memory_rows import PEAKS, is_described, memory_rows
from gpusage_lab.learning.profiled import profiled
from gpusage_lab.learning.profiled_pairs import profiled_pairs
from gpusage_lab.learning.scores import rmsle, score
from gpusage_lab.learning.slowdown_rows import slowdown_rows
from gpusage_lab.learning.step_rows import step_rows
from gpusage_lab.learning.targets import Cell, Points, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.zoo import load_zoo

TRIED = "torchvision:resnet18@224"
"""Of the zoo: what an artifact is asked first, to see whether this version can read it."""


class Comparison(NamedTuple):
    """One measured row, and what the predictor says of it.

    Attributes:
        source: As the artifact's card names it, where it was fitted on the row.
        figure: What was measured.
    """

    source: str
    figure: str
    label: str
    measured: float
    predicted: Interval


def check_readable(paths: Mapping[str, Path]) -> None:
    """Ask each of *paths*, artifacts by name, something small: another version may have left what this one cannot read.

    Raises:
        RequestError: One cannot be asked.
    """
    for name, path in paths.items():
        with reading({name: path}):
            try:
                _read_artifact(name)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                figures = f"none called {error}" if isinstance(error, KeyError) else f"others ({error})"
                message = (
                    f"Artifact '{path}' must have the figures that this version of gpusage reads; got {figures}. "
                    "Train it again with this version."
                )
                raise RequestError(message) from error


def _read_artifact(name: str) -> None:
    """Let the built-in predictors read all that they ever do of the artifact *name*."""
    _training_files(name)
    advisor = Advisor(hooks=make_hooks(), catalogue=builtin_catalogue())
    graph = load_zoo().graph(TRIED)
    needs = advisor.predict(graph, Workload(), list(advisor.catalogue))
    for alone in (SoloRun(), SoloRun(utilization=0.5), SoloRun(step_time_s=0.1)):
        advisor.price(graph, Workload(alone=alone), [advisor.catalogue.find(needs[0].gpu)], [50])
    advisor.colocate(needs[:1] * 2, advisor.catalogue.find(needs[0].gpu))
    for of, over in permutations(needs, 2):
        speedup(of, over)


def tables(name: str, data: DataFolder) -> list[ScoreTable]:
    """Return the scores of the artifact *name* as the predictors read it now."""
    answers = sorted(_ANSWERS[name](data), key=_line)
    title = f"{_TITLES[name]}: the artifact as it is, on rows that it was fitted on and on others"
    is_share = name == "activity"
    lines = [
        _scored(line, list(comparisons), is_share=is_share, is_seen=_is_seen(name, *line))
        for line, comparisons in groupby(answers, key=_line)
    ]
    figures = ("RMSLE", "bias, points") if is_share else ("MAPE %", "bias %")
    shown = ScoreTable(
        title=title,
        columns=("rows of", "n", *figures, "coverage %", "width, points" if is_share else "high/low", "fitted on"),
        rows=tuple(lines),
        notes=("Fitted on: the artifact's card names this source; refits show how well it predicts others.",),
        points=tuple(
            _points(line, list(comparisons), _UNITS[name]) for line, comparisons in groupby(answers, key=_line)
        ),
    )
    return [shown] if answers else []


def never_fitted(name: str, data: DataFolder) -> list[ScoreTable]:
    """Return the tables of `evaluate` that ask the predictors as well, on sources that nothing is fitted on."""
    if name == "memory":
        return [memory_unfitted.unfitted_table(data, load_zoo())]
    return list(activity_known.tables(data)) if name == "activity" else []


def _line(answer: Comparison) -> tuple[str, str]:
    return answer.source, answer.figure


def _is_seen(name: str, source: str, figure: str) -> bool:
    """Return whether the card of the artifact *name* says that it was fitted on *source*."""
    files = {file for file, kind in random_networks.KINDS.items() if source == f"gpumemnet_{kind}"}
    return figure != "DRAM activity" and not (files or {source}).isdisjoint(_training_files(name))


def _training_files(name: str) -> set[str]:
    """Return what stands before the colon of each line of "fitted on"; of several files, each."""
    lines = [line for line in pretrained().card(name).fitted_on if not line.startswith("left out")]
    heads = {line.partition(": ")[0] for line in lines}
    return heads | {part for head in heads for part in head.split(", ") if part.endswith(".csv")}


def _scored(line: tuple[str, str], answers: Sequence[Comparison], *, is_share: bool, is_seen: bool) -> tuple[Cell, ...]:
    measured = np.array([answer.measured for answer in answers])
    low, point, high = (
        np.array([getattr(answer.predicted, end) for answer in answers]) for end in ("low", "value", "high")
    )
    name = ", ".join(filter(None, line))
    seen_word = "yes" if is_seen else "no"
    if is_share:
        inside = 100.0 * float(((low <= measured) & (measured <= high)).mean())
        error, bias = rmsle(100.0 * measured, 100.0 * point), 100.0 * float((point - measured).mean())
        return name, len(answers), error, bias, inside, 100.0 * float(np.median(high - low)), seen_word
    figures = score(measured, point, low, high)
    inside = 100.0 * (figures.coverage or 0.0)
    return name, len(answers), 100.0 * figures.mape, 100.0 * figures.bias, inside, figures.width, seen_word


def _points(line: tuple[str, str], answers: Sequence[Comparison], unit: str) -> Points:
    return Points(
        title=f"{', '.join(filter(None, line))}; the artifact as it is",
        unit=unit,
        measured=[answer.measured for answer in answers],
        predicted=[answer.predicted.value for answer in answers],
        low=[answer.predicted.low for answer in answers],
        high=[answer.predicted.high for answer in answers],
        labels=[answer.label for answer in answers],
    )


def _step_time(data: DataFolder) -> Iterator[Comparison]:
    zoo = load_zoo()
    for row in sorted(step_rows(data, zoo), key=lambda row: (row.key, row.workload.mode, row.workload.batch_size)):
        predicted = WorkloadAnalysis(zoo.graph(row.key), row.workload).step_time_s([row.gpu])[0]
        ends = (predicted.value + row.copy_s, predicted.low + row.copy_s, predicted.high + row.copy_s)
        yield Comparison(row.source, "", f"{row.key} on {row.gpu.name}", row.measured_s, _interval(*ends))


def _memory(data: DataFolder) -> Iterator[Comparison]:
    zoo, gpu = load_zoo(), builtin_catalogue().find(MEMORY_GPU)
    rows = memory_rows(data, zoo)
    for index in np.flatnonzero(rows.sound):
        workload = Workload(batch_size=int(rows.batch_size[index]))
        predicted = WorkloadAnalysis(zoo.graph(rows.key[index]), workload).memory_bytes([gpu])[0]
        ends = (predicted.value / GIB, predicted.low / GIB, predicted.high / GIB)
        yield Comparison(PEAKS, "", rows.model[index], float(rows.measured[index]) / GIB, _interval(*ends))
    for run in profiled(data).runs:
        if run.is_alone and run.figures.get("process_bytes"):
            predicted = WorkloadAnalysis(run.graph, run.workload).memory_bytes([run.gpu])[0]
            ends = (predicted.value / GIB, predicted.low / GIB, predicted.high / GIB)
            source = run.source if is_described(run) else f"{run.source}, not fp32 with momentum"
            yield Comparison(source, "", run.job, run.figures["process_bytes"] / GIB, _interval(*ends))


def _activity(data: DataFolder) -> Iterator[Comparison]:
    gpu = builtin_catalogue().find(activity_rows.GPU)
    for network in random_networks.load(data).networks:
        workload = Workload(batch_size=network.batch_size, optimizer="adam")
        predicted = WorkloadAnalysis(network.graph, workload).activity([gpu])[0]
        source, label = f"gpumemnet_{network.kind}", f"{network.kind} {network.architecture}"
        yield Comparison(source, "utilization", label, network.gpu_utilization / 100.0, predicted.gpu_utilization)
        yield Comparison(source, "SM activity", label, network.sm_activity / 100.0, predicted.sm_activity)
    for run in profiled(data).runs:
        if run.is_alone:
            predicted = WorkloadAnalysis(run.graph, run.workload).activity([run.gpu])[0]
            for figure, column in _FIGURES.items():
                if column in run.figures:
                    yield Comparison(run.source, figure, run.job, run.figures[column], getattr(predicted, column))


def _colocation(data: DataFolder) -> Iterator[Comparison]:
    sources = {"gavel_pairs.csv": pairs.gavel(data)}
    if "lucid_pairs.csv" in data:
        sources["lucid_pairs.csv"] = pairs.lucid(data)
    sources |= {f"profile {name}": measured for name, measured in profiled_pairs(data).items()}
    for source, measured in sources.items():
        for first, second in zip(*np.nonzero(np.triu(~np.isnan(measured.sums))), strict=True):
            predicted = predict_colocation([measured.needs[first], measured.needs[second]], measured.gpu)
            label = " + ".join(f"{measured.jobs[job][0]}, batch {measured.jobs[job][1]}" for job in (first, second))
            yield Comparison(source, "sum", label, float(measured.sums[first, second]), predicted.throughput_sum)
            parts = (measured.parts[first, second], measured.parts[second, first])
            for part, interval in zip(parts, predicted.normalised_throughput, strict=True):
                yield Comparison(source, "one job", label, float(part), interval)


def _slowdown(data: DataFolder) -> Iterator[Comparison]:
    zoo = load_zoo()
    for row in slowdown_rows(data, zoo):
        known = ObservedFigures(step_time_s=Figure(interval=exact_interval(row.alone_s), source=row.source))
        predicted = predict_slowdown(zoo.graph(row.key), row.workload, [row.gpu], [[row.share]], [known])[0][0]
        yield Comparison(row.source, "step time known", row.key, row.slowdown, predicted)


def _interval(value: float, low: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high)


_ANSWERS: Mapping[str, Callable[[DataFolder], Iterator[Comparison]]] = {
    "step_time": _step_time,
    "memory": _memory,
    "activity": _activity,
    "colocation": _colocation,
    "slowdown": _slowdown,
}
_TITLES = {
    "step_time": "Step time",
    "memory": "Memory",
    "activity": "Activity alone",
    "colocation": "Co-location",
    "slowdown": "Slowdown on a part of a GPU",
}
_FIGURES = {"utilization": "gpu_utilization", "SM activity": "sm_activity", "DRAM activity": "dram_activity"}
_UNITS = {
    "step_time": "s",
    "memory": "GiB",
    "activity": "share",
    "colocation": "of the throughput alone",
    "slowdown": "x",
}
