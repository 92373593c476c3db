"""In how many families an interval of memory that holds 90 % of all rows can hold 85 to 95 % of the family's rows.

Rows of a family share an error, so most families lie inside as a whole. Drawn are normal errors that have as much in
common as the ranks of ours, by analysis of variance. Sealed families are not read.

Example: python bench/memory_families.py --data ../shared/data
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata  # type: ignore[import-untyped, unused-ignore]

from gpusage.predictors.arrays import BoolArray, FloatArray
from gpusage_lab.learning.memory_fit import fit_memory
from gpusage_lab.learning.memory_need import HIGH, HIGH_SHARE, LOW_SHARE, fit_need, had_no_choice
from gpusage_lab.learning.memory_rows import BENCHMARK, PEAKS, STATIC, MemoryRows, memory_rows
from gpusage_lab.learning.splits import by_group
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds.command import command_of
from gpusage_planning.zoo import load_zoo

Names: TypeAlias = npt.NDArray[np.str_]
BAND, TAKEN_BELOW, LEAST_ROWS, DRAWS = (0.85, 0.95), (0.09, 0.99), 20, 2000
COLUMNS = ("memory", "families", "family's %", "model's %", "independent %", "expected %", "from %", "to %", "ours %")


class Errors(NamedTuple):
    """Of rows without their family: measured over predicted, which are inside, and the shares below the two ends."""

    ratios: FloatArray
    inside: BoolArray
    families: Names
    models: Names
    below: tuple[float, float]


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return what can be reached, and what is."""
    rows = memory_rows(DataFolder(data.folder, is_sealed=True), load_zoo())
    return [
        ScoreTable(
            title="Memory: families of which 85 to 95 % lie inside, if 90 % of all rows do",
            columns=COLUMNS,
            rows=(("taken", *_line(taken(rows))), ("needed", *_line(needed(rows)))),
            notes=("Family's, model's: of the variance, in common. Independent: expected with nothing in common.",),
        )
    ]


def taken(rows: MemoryRows) -> Errors:
    """Return the errors of what a run takes on a free GPU."""
    terms, measured = rows.terms[rows.sound], rows.measured[rows.sound]
    families, models = np.array(rows.family)[rows.sound], np.array(rows.model)[rows.sound]
    ends = np.zeros((3, len(measured)))
    for fold in by_group(families.tolist(), 10, "family"):
        fitted = fit_memory(terms[fold.train], measured[fold.train], families[fold.train])
        ends[:, fold.test] = fitted.predicted(terms[fold.test])
    inside = (ends[0] <= measured) & (measured <= ends[2])
    return Errors(measured / ends[1], inside, families, models, TAKEN_BELOW)


def needed(rows: MemoryRows) -> Errors:
    """Return the errors of what a run needs, of rows that could take hardly more."""
    need, which = fit_need(rows), had_no_choice(rows)
    inside = (need.ratios >= need.end(0)) & (need.ratios <= need.end(HIGH))
    families, models = np.array(rows.family)[which], np.array(rows.model)[which]
    return Errors(need.ratios, inside, families, models, (LOW_SHARE, HIGH_SHARE))


def _line(errors: Errors) -> tuple[Cell, ...]:
    """Return the cells of a row, in percent but for the count."""
    ranks = norm.ppf((rankdata(errors.ratios) - 0.5) / len(errors.ratios))
    family, model = (_intraclass(ranks, groups) for groups in (errors.families, errors.models))
    shares, chance = (family, max(model - family, 0.0)), np.random.default_rng(0)
    alone, drawn = (
        np.array([_in_band(errors.families, _drawn(errors, common, chance)) for _ in range(DRAWS)])
        for common in ((0.0, 0.0), shares)
    )
    count = int((np.unique(errors.families, return_counts=True)[1] >= LEAST_ROWS).sum())
    ours, extremes = _in_band(errors.families, errors.inside), np.quantile(drawn, (0.05, 0.95))
    figures = (*shares, alone.mean(), drawn.mean(), *extremes, ours)
    return count, *(100 * float(figure) for figure in figures)


def _intraclass(values: FloatArray, groups: Names) -> float:
    """Return which share of their variance rows of a group have in common: ICC(1) of Shrout and Fleiss, 1979."""
    _, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    means = np.bincount(place, weights=values) / counts
    between = float(counts @ (means - values.mean()) ** 2) / (len(counts) - 1)
    within = float(((values - means[place]) ** 2).sum()) / (len(values) - len(counts))
    usual = (len(values) - float(counts @ counts) / len(values)) / (len(counts) - 1)
    return (between - within) / (between + (usual - 1) * within)


def _drawn(errors: Errors, common: tuple[float, float], chance: np.random.Generator) -> BoolArray:
    """Return which rows are inside where families and models have these shares of the variance in *common*."""
    values = np.sqrt(1 - sum(common)) * chance.standard_normal(len(errors.ratios))
    for groups, share in zip((errors.families, errors.models), common, strict=True):
        names, place = np.unique(groups, return_inverse=True)
        values += np.sqrt(share) * chance.standard_normal(len(names))[place]
    low, high = norm.ppf(errors.below)
    inside: BoolArray = (low <= values) & (values <= high)
    return inside


def _in_band(families: Names, inside: BoolArray) -> float:
    _, place, counts = np.unique(families, return_inverse=True, return_counts=True)
    covered = (np.bincount(place, weights=inside) / counts)[counts >= LEAST_ROWS]
    return float(((covered >= BAND[0]) & (covered <= BAND[1])).mean())


main = command_of("memory_families", tables, (PEAKS, STATIC, BENCHMARK), __file__)

if __name__ == "__main__":
    main()
