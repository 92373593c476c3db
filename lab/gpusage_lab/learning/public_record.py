"""The target ``published``: each published figure beside what gpusage predicts, and a summary by kinds of rows.

Nothing is fitted here, and a row is predicted as a user would ask for it: of its model, batch, precision and GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpusage.predictors.memory.peak import context_of
from gpusage.predictors.needs import predicted
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import Decoding, GpuNeed, Interval, Workload
from gpusage_lab.learning.public_goals import goals_table
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.published.compared import Compared
from gpusage_lab.published.rows import PublishedRow, published_rows
from gpusage_lab.published.runs import TIMES, Left, Run, run_of
from gpusage_planning.zoo import Zoo, load_zoo

FIGURES = ("n", "median ratio", "median factor", "inside %")
SUMMARY = ("rows of", *FIGURES, *(f"unstarred: {name}" for name in FIGURES))
RATIO = "Ratio: predicted over published time or memory, so above 1 is too slow or too large."
FACTOR = "Factor: the larger of ratio and 1 over ratio. Inside: the published value lies in the 90 % interval."
WITHOUT_SLOW_T4 = "all, without the T4 of NGC 20.06"
STARRED = "Starred: gpusage says itself that the model, GPU or setting is unlike those that it was fitted on."


class Record(NamedTuple):
    """All rows of the published tables: those that are compared, and those that are left."""

    compared: Sequence[Compared]
    left: Sequence[Left]


def evaluate(data: DataFolder) -> list[ScoreTable]:
    """Return the summaries, what is left out and why, and every row."""
    record = compare(data, load_zoo())
    return [*summaries(record), rows_table(record.compared)]


def compare(data: DataFolder, zoo: Zoo, includes: Callable[[Run], bool] = lambda _: True) -> Record:
    """Return each row of *data* that *includes* takes beside its prediction.

    Rows of one graph follow one another, so it is analysed once.
    """
    outcomes = [run_of(row) for row in published_rows(data)]
    left = [outcome for outcome in outcomes if isinstance(outcome, Left)]
    compared = []
    runs = [outcome for outcome in outcomes if isinstance(outcome, Run) and includes(outcome)]
    for run in sorted(runs, key=lambda one: (one.key, one.workload.mode)):
        outcome = _compared(run, zoo)
        if isinstance(outcome, Left):
            left.append(outcome)
        else:
            compared.append(outcome)
    return Record(compared, left)


def _compared(run: Run, zoo: Zoo) -> Compared | Left:
    if run.key not in zoo:
        return Left(run.row, "the zoo has no card of the model at this size")
    graph = zoo.graph(run.key)
    try:
        need = predicted(graph, run.workload, [run.gpu])[0]
        if run.memory is not None:
            return _of_memory(run, need)
        step_s = need.step_time_s
        if run.without_prompt and run.workload.generate is not None:
            first = predicted(graph, _prompt_alone(run.workload), [run.gpu])[0].step_time_s
            share = 1.0 - min(first.value / step_s.value, 0.99)
            step_s = Interval(value=step_s.value * share, low=step_s.low * share, high=step_s.high * share)
    except GpuUsageError as error:
        return Left(run.row, str(error))
    if run.row.metric in TIMES:
        scale = 1e3 * run.units_per_step
        ours = Interval(value=scale * step_s.value, low=scale * step_s.low, high=scale * step_s.high)
        return Compared(run=run, ours=ours, ratio=ours.value / run.row.value, star=_star(need))
    units = run.units_per_step
    ours = Interval(value=units / step_s.value, low=units / step_s.high, high=units / step_s.low)
    return Compared(run=run, ours=ours, ratio=run.row.value / ours.value, star=_star(need))


def _prompt_alone(workload: Workload) -> Workload:
    prompt = workload.generate.prompt_tokens if workload.generate else 1
    return replace(workload, generate=Decoding(prompt_tokens=prompt, new_tokens=1))


def _of_memory(run: Run, need: GpuNeed) -> Compared:
    """Return the memory as the publisher counts it: of tensors, of the allocator, or of the whole process."""
    context = 0.0 if run.memory == "process" else context_of(run.gpu).value
    of = need.required_bytes if run.memory == "allocated" else need.memory_bytes
    scale = run.row.value / run.counted_bytes
    ours = Interval(
        value=scale * (of.value - context), low=scale * (of.low - context), high=scale * (of.high - context)
    )
    return Compared(run=run, ours=ours, ratio=ours.value / run.row.value, star=_star(need))


def _star(need: GpuNeed) -> str:
    return "" if need.familiar else need.notes[-1]


def summaries(record: Record) -> list[ScoreTable]:
    """Return the tables of all rows, of the goals, of each kind of rows, of each source, and of what is left out."""
    of_time = [one for one in record.compared if one.run.memory is None]
    of_memory = [one for one in record.compared if one.run.memory is not None]
    others = [one for one in record.compared if not _is_of_slow_t4(one.run.row)]
    parts = (("time", of_time), ("memory", of_memory), ("all", record.compared), (WITHOUT_SLOW_T4, others))
    whole = tuple((name, *_both(part)) for name, part in parts)
    notes = (RATIO, FACTOR, STARRED)
    return [
        ScoreTable(title="The public record", columns=SUMMARY, rows=whole, notes=notes),
        goals_table(record.compared),
        _grouped("The public record by kinds of rows", record.compared, lambda one: one.run.group),
        _grouped("The public record by source", record.compared, lambda one: one.run.row.source),
        _grouped("The public record by GPU", record.compared, lambda one: one.run.gpu.name),
        _grouped("The public record by source, mode, precision and GPU", record.compared, _cell),
        _left_table(record.left),
    ]


def _is_of_slow_t4(row: PublishedRow) -> bool:
    """Return whether NVIDIA ran *row* on its T4 of 2020; BERT's later table of the same runs is 1.6 times as fast."""
    return row.gpu.startswith("T4") and "NGC 20.06" in row.framework


def _cell(one: Compared) -> str:
    row = one.run.row
    return f"{row.source}, {row.mode}, {one.run.workload.precision}, {one.run.gpu.name}"


def _grouped(title: str, rows: Sequence[Compared], name_of: Callable[[Compared], str]) -> ScoreTable:
    groups: dict[str, list[Compared]] = {}
    for one in rows:
        groups.setdefault(name_of(one), []).append(one)
    cells = tuple((name, *_both(part)) for name, part in sorted(groups.items()))
    return ScoreTable(title=title, columns=SUMMARY, rows=cells)


def _both(rows: Sequence[Compared]) -> tuple[Cell, ...]:
    """Return the cells of `SUMMARY` after the name: of all *rows*, and of those without a star."""
    return (*figures(rows), *figures([one for one in rows if not one.star]))


def figures(rows: Sequence[Compared]) -> tuple[Cell, ...]:
    """Return the cells of `FIGURES`."""
    if not rows:
        return (0, None, None, None)
    ratio, factor = (float(np.median(each)) for each in ([one.ratio for one in rows], [one.factor for one in rows]))
    inside = 100.0 * sum(one.is_inside for one in rows) / len(rows)
    return len(rows), round(ratio, 2), round(factor, 2), round(inside, 1)


def _left_table(left: Sequence[Left]) -> ScoreTable:
    counts = Counter(one.reason for one in left)
    rows = tuple((reason, count, _examples(left, reason)) for reason, count in counts.most_common())
    return ScoreTable(
        title="Rows that are not predicted", columns=("reason", "n", "models, the most common"), rows=rows
    )


def _examples(left: Sequence[Left], reason: str, most: int = 6) -> str:
    models = Counter(one.row.model for one in left if one.reason == reason)
    more = f" and {len(models) - most} more" if len(models) > most else ""
    return ", ".join(f"{model} ({count})" for model, count in models.most_common(most)) + more


def rows_table(rows: Sequence[Compared]) -> ScoreTable:
    """Return every compared row."""
    columns = (
        "source",
        "model",
        "mode",
        "precision",
        "GPU",
        "GPUs",
        "batch",
        "unit",
        "published",
        "ours",
        "low",
        "high",
    )
    return ScoreTable(
        title="The public record, row by row",
        columns=(*columns, "inside", "starred"),
        rows=tuple(_row_cells(one) for one in rows),
    )


def _row_cells(one: Compared) -> tuple[Cell, ...]:
    row, run = one.run.row, one.run
    return (
        *(row.source, row.model, row.mode, run.workload.precision, run.gpu.name),
        *(row.gpus, run.workload.batch_size, row.metric, row.value),
        *_ends(one.ours),
        "yes" if one.is_inside else "no",
        one.star,
    )


def _ends(ours: Interval) -> Iterator[float]:
    yield from (float(f"{value:.4g}") for value in (ours.value, ours.low, ours.high))
