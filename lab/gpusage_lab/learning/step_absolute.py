"""The tables of seconds of an unseen family: each source, its sealed families, each precision, and what is left out.

Left out of every fit are timm's older releases, channels last and compiled runs. They are predicted as they stand, as
if eager, by the fit that has not seen their family, so they show how far the figures of the other tables reach.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpusage_lab.learning.scores import by_family, score
from gpusage_lab.learning.splits import is_sealed
from gpusage_lab.learning.step_baselines import constant_roofline
from gpusage_lab.learning.step_flat import Array, Sample
from gpusage_lab.learning.step_rows import TIMM_DEVICES, TIMM_PRECISIONS, StepRow, eager_rows, timm_row
from gpusage_lab.learning.step_samples import sample_of
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder, Table
from gpusage_planning.zoo import Zoo

COLUMNS = (
    *("rows of", "n", "ours", "ours, median", "ours, mean of families"),
    *("coverage %", "coverage %, mean of families", "high/low"),
    *("ours, host known", "constant roofline", "random forest"),
)
WEIGHTED = "Mean of families: each family counts alike, however many rows it has."


class Answers(NamedTuple):
    """What was measured and what was predicted, one entry per row; NaN where a method was not asked.

    Attributes:
        families: Names.
        factor: From ours to either end of its 90 % interval.
        hosted_s: Ours, launches as fast as elsewhere in the campaign.
        plain_s: The constant roofline's.
        forest_s: The random forest's.
    """

    families: Array
    measured_s: Array
    ours_s: Array
    factor: Array
    hosted_s: Array
    plain_s: Array
    forest_s: Array

    def of(self, chosen: Array) -> Answers:
        """Return the entries of the *chosen* rows."""
        return Answers(*(column[chosen] for column in self))


class Side(NamedTuple):
    """Rows with their answers."""

    rows: Sequence[StepRow]
    answers: Answers


def side(rows: Sequence[StepRow], samples: Sequence[Sample], ours: Array, factor: Array, forest_s: Array) -> Side:
    """Return *rows* with their predictions; *ours* is as `step_time.held_out_families` gives it."""
    families = np.array([row.family for row in rows], dtype=str)
    measured_s = np.array([row.measured_s for row in rows])
    plain_s = constant_roofline(samples)
    return Side(rows, Answers(families, measured_s, ours[:, 0], factor, ours[:, 1], plain_s, forest_s))


def absolute_table(used: Side, left_out: Side, row_counts: Mapping[str, int], note: str) -> ScoreTable:
    """Return the errors by source.

    Args:
        used: The rows that are scored everywhere else too.
        left_out: Rows that no other table has.
        row_counts: How many rows each source has, those of models without a card too.
        note: What else was not looked at.
    """
    lines: list[tuple[Cell, ...]] = []
    for name, part, chosen in (*_parts(used), *_sources(left_out)):
        share = 100.0 * float(chosen.sum()) / row_counts[name] if name in row_counts else None
        figures = _figures(part.answers.of(chosen))
        lines.append((name, figures[0], share, *figures[1:]))
    return ScoreTable(
        title="Step time of an unseen family, MAPE %",
        columns=(*COLUMNS[:2], "predictable %", *COLUMNS[2:]),
        rows=tuple(lines),
        notes=(
            "A model of NeuSight is a family of its own. Host known: launches as fast as elsewhere in the campaign.",
            "Constant roofline: one efficiency a class, none fitted. Random forest: sums over the graph, GPU figures.",
            "Predictable: models that have a card. Fused: timm's benchmark joined branches and normalizations first.",
            "Older release, channels last, compiled: rows that no other table has, one in eight drawn, predicted as if",
            f"eager, by the fit that has not seen the family. {WEIGHTED}",
            f"Left out of the first lines: {note}.",
        ),
    )


def precision_table(used: Side, note: str) -> ScoreTable:
    """Return the errors by source and precision."""
    names = np.array([f"{row.source}, {row.workload.precision}" for row in used.rows])
    lines = [(name, *_figures(used.answers.of(names == name))) for name in sorted(set(names.tolist()))]
    title = "Step time by precision, unseen family, MAPE %"
    return ScoreTable(title=title, columns=COLUMNS, rows=tuple(lines), notes=(note, WEIGHTED))


def _sources(part: Side) -> Iterator[tuple[str, Side, Array]]:
    """Yield each source's name, and which rows are of it."""
    sources = np.array([row.source for row in part.rows], dtype=str)
    for source in np.unique(sources).tolist():
        yield source, part, sources == source


def _parts(part: Side) -> Iterator[tuple[str, Side, Array]]:
    """Yield each source, and of those of its rows that are to be seen alone, where there are any."""
    sealed = np.array([is_sealed(row.family) for row in part.rows], dtype=bool)
    fused = np.array([row.key.startswith("timm-fused:") for row in part.rows], dtype=bool)
    for source, _, chosen in _sources(part):
        yield source, part, chosen
        for name, which in (("sealed families", sealed), ("fused models", fused)):
            if (chosen & which).any():
                yield f"{source}, {name}", part, chosen & which


def _figures(answers: Answers) -> tuple[Cell, ...]:
    """Return the cells of `COLUMNS` from the second on."""
    measured, point = answers.measured_s, answers.ours_s
    low, high = point / answers.factor, point * answers.factor
    ours = score(measured, point, low, high)
    others = (_error(measured, each) for each in (answers.hosted_s, answers.plain_s, answers.forest_s))
    return (
        ours.row_count,
        *(100 * ours.mape, 100 * ours.median, 100 * by_family(np.abs(point - measured) / measured, answers.families)),
        *(100 * (ours.coverage or 0.0), 100 * by_family((low <= measured) & (measured <= high), answers.families)),
        ours.width,
        *others,
    )


def _error(measured: Array, predicted: Array) -> float | None:
    return None if np.isnan(predicted).any() else 100 * score(measured, predicted).mape


EVERY = 8
"""One row in so many is drawn."""


class LeftOut(NamedTuple):
    """Rows that are predicted and never fitted, and the samples made of them."""

    rows: list[StepRow]
    samples: list[Sample]


def left_out_rows(data: DataFolder, zoo: Zoo) -> LeftOut:
    """Return the drawn rows whose model is in the zoo."""
    table = data.read("timm_benchmark.csv")
    used = eager_rows(table).index
    others = table[table.device.isin(list(TIMM_DEVICES)) & table.precision.isin(list(TIMM_PRECISIONS))].drop(index=used)
    rows = [timm_row(row, zoo, f", {_kind(row)}") for row in others[_is_sampled(others)].to_dict("records")]
    rows = [row for row in rows if row.key in zoo and not (data.is_sealed and is_sealed(row.family))]
    return LeftOut(rows, [sample_of(row, zoo) for row in rows])


def _is_sampled(table: Table) -> Array:
    columns = (table.model, table.device, table.torch_version, table.memory_layout, table.torch_compile)
    names = (" ".join(map(str, row)) for row in zip(*columns, strict=True))
    return np.array([int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % EVERY == 0 for name in names], dtype=bool)


def _kind(row: Mapping[str, Any]) -> str:
    if row["torch_compile"]:
        return "compiled"
    return "channels last" if row["memory_layout"] == "nhwc" else "older release"
