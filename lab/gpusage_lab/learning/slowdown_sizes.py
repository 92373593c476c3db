"""What a part of a GPU is predicted to cost against what it cost, part by part, with plainer rules beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpusage.predictors.arrays import FloatArray
from gpusage_lab.learning.scores import score
from gpusage_lab.learning.slowdown import baselines, columns_of, held_out, tables_of
from gpusage_lab.learning.slowdown_rows import FILES, SlowdownColumns
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.zoo import Zoo, load_zoo

_COLUMNS = ("part of the GPU's SMs, %", "rows", "measured, % more", "predicted, % more", "MAPE %", "coverage %")


def tables(data: DataFolder) -> Sequence[ScoreTable]:
    """Return what `gpusage evaluate --target slowdown` shows, then each source part by part."""
    return tables_with(data, load_zoo())


def tables_with(data: DataFolder, zoo: Zoo) -> Sequence[ScoreTable]:
    """Do as `tables` with the cards of *zoo*; families are held out as there."""
    columns = columns_of(data, zoo)
    predicted = held_out(columns)
    parts = (by_part(columns, source, predicted["step_time"]) for source in FILES)
    return [*tables_of(columns, predicted, data, zoo), *parts]


def by_part(columns: SlowdownColumns, source: str, predicted: FloatArray) -> ScoreTable:
    """Return *source* part by part: the medians, how far the prediction misses, and by how much each plainer rule."""
    rules = dict(baselines(columns))
    return ScoreTable(
        title=f"By the part of the GPU, step time known: {source}",
        columns=(*_COLUMNS, *(f"{name}, MAPE %" for name in rules)),
        rows=tuple(_lines(columns, source, predicted, list(rules.values()))),
        notes=("Measured and predicted are medians: by how much longer than on the whole GPU a step takes.",),
    )


def _lines(
    columns: SlowdownColumns, source: str, predicted: FloatArray, rules: Sequence[FloatArray]
) -> Iterator[tuple[Cell, ...]]:
    percents = np.array([round(100 * row.part) for row in columns.rows])
    of_source = columns.source == source
    for percent in np.unique(percents[of_source]).tolist():
        which = of_source & (percents == percent)
        measured, (low, point, high) = columns.measured[which], predicted[:, which]
        scored = score(measured, point, low, high)
        others = (100 * score(measured, rule[which]).mape for rule in rules)
        medians = (100 * float(np.median(slowdown) - 1) for slowdown in (measured, point))
        yield (percent, len(measured), *medians, 100 * scored.mape, 100 * (scored.coverage or 0.0), *others)
