"""The target ``memory``: fits the peaks of training, and scores them on families that the fit has not seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusage.predictors.artifacts import Card, MemoryParameters
from gpusage.predictors.liveness import TRAINING_TERMS
from gpusage_hooks.units import GIB
from gpusage_lab.learning.artifacts import Artifact
from gpusage_lab.learning.memory_baselines import BASELINES
from gpusage_lab.learning.memory_fit import FloatArray, IntArray, MemoryFit, fit_memory
from gpusage_lab.learning.memory_rows import PEAKS, BoolArray, MemoryRows, OwnPeaks, memory_rows, own_peaks
from gpusage_lab.learning.memory_unfitted import unfitted_table
from gpusage_lab.learning.scores import score
from gpusage_lab.learning.splits import Fold, by_group, check_enough, random_rows
from gpusage_lab.learning.targets import Points, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.zoo.cards import Zoo, load_zoo

FOLDS = 10
ENDS = 4
"""Rows of `MemoryFit.predicted`."""
SMALL_BATCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What `MemoryFit.predicted` says of each row, from fits that have not seen its group; NaN where none was made."""

    name: str
    predicted: FloatArray


def fit(data: DataFolder) -> Sequence[Artifact]:
    """Fit the weights of the walk's terms on every sound row."""
    zoo = load_zoo()
    rows, own = _rows(data, zoo), own_peaks(data, zoo)
    return [_artifact(rows, own, _fitted(rows, own, np.flatnonzero(rows.sound)))]


def _rows(data: DataFolder, zoo: Zoo) -> MemoryRows:
    """Return the peaks, once there are enough to leave a family out."""
    rows = memory_rows(data, zoo)
    check_enough(_families(rows)[rows.sound].tolist(), "families")
    return rows


def _artifact(rows: MemoryRows, own: OwnPeaks, fitted: MemoryFit) -> Artifact:
    sound = rows.sound
    held_out = _held_out(rows, own, by_group(rows.family, FOLDS, "family"), "unseen family")
    low, point, high, share_high = held_out.predicted[:, sound]
    figures = score(rows.measured[sound], point, low, high)
    return Artifact(
        name="memory",
        card=Card(
            purpose="Peak bytes of device memory of a training step: a weighted sum of the terms of the walk.",
            fitted_on=(
                _source(rows),
                *(f"{source}: {count} rows of fp32" for source, count in sorted(Counter(own.source).items())),
            ),
            licences=(
                "GPUMemNet (arXiv 2602.17817): figures of a published research data set, no licence file",
                "gpusage profile: our own",
            ),
            ranges={
                "batch_size": (float(rows.batch_size.min()), float(rows.batch_size.max())),
                "measured_bytes": (float(rows.measured[sound].min()), float(rows.measured[sound].max())),
            },
            errors={
                "unseen family, MAPE": figures.mape,
                "unseen family, median": figures.median,
                "unseen family, above the high end": float((rows.measured[sound] > high).mean()),
                "unseen family, inside the interval": figures.coverage or 0.0,
                "unseen family, above a share's high end": float((rows.measured[sound] > share_high).mean()),
            },
            notes=("One GPU (A100 of 40 GB), fp32, momentum; other states and precisions are added by rule.",),
        ),
        parameters=MemoryParameters(
            terms=TRAINING_TERMS, weights=fitted.weights.tolist(), constant_bytes=fitted.constants.tolist()
        ),
    )


def _source(rows: MemoryRows) -> str:
    left_out = ", ".join(f"{count} {reason}" for reason, count in rows.skipped)
    return (
        f"{PEAKS}: {int(rows.sound.sum())} rows of {len(set(rows.family))} families; left out: {left_out}, "
        f"{int(rows.flat.sum())} flat, {int((rows.impossible & ~rows.flat).sum())} below what must be there."
    )


def evaluate(data: DataFolder) -> Sequence[ScoreTable]:
    """Score on unseen families, with the baselines beside; on perceptrons, which nothing was fitted on."""
    return evaluate_with(data, load_zoo())


def evaluate_with(data: DataFolder, zoo: Zoo) -> Sequence[ScoreTable]:
    """Do as `evaluate` with the cards of *zoo*."""
    rows, own = _rows(data, zoo), own_peaks(data, zoo)
    folds = by_group(rows.family, FOLDS, "family")
    ours = _held_out(rows, own, folds, "gpusage, unseen family")
    chance = _held_out(rows, own, random_rows(len(rows.model), FOLDS), "gpusage, random rows")
    others = [
        HeldOut(name=name, predicted=np.tile(baseline(rows, folds), (ENDS, 1))) for name, baseline in BASELINES.items()
    ]
    tables = [_table(rows, which, title, [ours, chance, *others]) for title, which in _subsets(rows).items()]
    share = _share_table(rows, ours)
    return [*tables, share, _families_table(rows, ours), *_own_table(rows, own), unfitted_table(data, zoo)]


def _subsets(rows: MemoryRows) -> Mapping[str, BoolArray]:
    everything = np.ones(len(rows.model), dtype=bool)
    return {
        "Memory: measured peaks of training, flat and impossible rows left out": rows.sound,
        "Memory: the same, only flat rows left out": ~rows.flat,
        "Memory: the same, every row that its source calls sound": everything,
    }


def _families(rows: MemoryRows) -> npt.NDArray[np.str_]:
    return np.array(rows.family)


def _fitted(rows: MemoryRows, own: OwnPeaks, train: IntArray, tested: Collection[str] = ()) -> MemoryFit:
    """Return the fit to the rows *train*, and to those of our own that are of no family of *tested*."""
    untested = [index for index, family in enumerate(own.family) if family not in tested]
    return fit_memory(
        np.concatenate([rows.terms[train], own.terms[untested]]),
        np.concatenate([rows.measured[train], own.measured[untested]]),
        np.concatenate([_families(rows)[train], np.array([own.family[index] for index in untested], dtype=str)]),
    )


def _held_out(rows: MemoryRows, own: OwnPeaks, folds: Sequence[Fold], name: str) -> HeldOut:
    """Fit each fold on its sound rows, and predict all of its tested rows."""
    predicted = np.full((ENDS, len(rows.model)), np.nan)
    for fold in folds:
        fitted = _fitted(rows, own, fold.train[rows.sound[fold.train]], set(_families(rows)[fold.test].tolist()))
        predicted[:, fold.test] = fitted.predicted(rows.terms[fold.test])
    return HeldOut(name=name, predicted=predicted)


def _own_table(rows: MemoryRows, own: OwnPeaks) -> list[ScoreTable]:
    """Return how well peaks of gpusage profile are told from the public ones, and from its own other families."""
    if not len(own.measured):
        return []
    predicted = np.full((ENDS, len(own.measured)), np.nan)
    for fold in by_group(own.family, FOLDS, "family"):
        tested = {own.family[index] for index in fold.test}
        train = np.flatnonzero(rows.sound & ~np.isin(_families(rows), list(tested)))
        predicted[:, fold.test] = _fitted(rows, own, train, tested).predicted(own.terms[fold.test])
    title = "Memory: measured by gpusage profile"
    line = _row("gpusage, unseen family", own.measured, predicted)
    return [
        ScoreTable(
            title=title, columns=_COLUMNS, rows=(line,), points=(_points(title, own.measured, predicted, own.label),)
        )
    ]


_COLUMNS = (
    *("predictor", "rows", "MAPE %", "median %", "within 10 %", "bias %"),
    *("above high %", "coverage %", "high/point", "high/low"),
)


def _table(rows: MemoryRows, which: BoolArray, title: str, predictors: Sequence[HeldOut]) -> ScoreTable:
    measured, ours = rows.measured[which], predictors[0].predicted[:, which]
    return ScoreTable(
        title=title,
        columns=_COLUMNS,
        rows=tuple(_row(each.name, measured, each.predicted[:, which]) for each in predictors),
        notes=(_source(rows), "Goals: MAPE <= 5, median <= 3, above high <= 1, coverage 85 to 95."),
        points=(_points(title, measured, ours, np.array(rows.model)[which].tolist()),),
    )


def _points(title: str, measured: FloatArray, predicted: FloatArray, labels: Sequence[str]) -> Points:
    low, point, high, _ = predicted / GIB
    return Points(
        title=title,
        unit="GiB",
        measured=(measured / GIB).tolist(),
        predicted=point.tolist(),
        low=low.tolist(),
        high=high.tolist(),
        labels=labels,
    )


def _row(name: str, measured: FloatArray, predicted: FloatArray) -> tuple[str | float | None, ...]:
    low, point, high, _ = predicted
    figures = score(measured, point, low, high)
    cells = (figures.mape, figures.median, figures.within_10, figures.bias)
    if np.array_equal(low, high):
        return name, len(measured), *(100 * cell for cell in cells), None, None, None, None
    above = float((measured > high).mean())
    coverage = float(figures.coverage or 0.0)
    shares = tuple(100 * cell for cell in (*cells, above, coverage))
    return name, len(measured), *shares, float(np.median(high / point)), figures.width


def _share_table(rows: MemoryRows, ours: HeldOut) -> ScoreTable:
    """Return how many rows are above each upper end that a share could book."""
    sound, families = rows.sound, _families(rows)[rows.sound]
    measured, small = rows.measured[sound], rows.batch_size[sound] <= SMALL_BATCH
    _, point, high, share_high = ours.predicted[:, sound]
    ends = {"gpusage, a share's end": share_high, "gpusage, the high end": high}
    lines: list[tuple[str | float | None, ...]] = []
    for name, end in {**ends, "point x 1.1": 1.1 * point, "point x 1.3": 1.3 * point}.items():
        above = measured > end
        by_family = [above[families == family].mean() for family in sorted(set(families))]
        shares = (100 * float(np.mean(each)) for each in (above, above[small], by_family))
        widths = (float(np.quantile(end / point, share)) for share in (0.5, 0.9))
        lines.append((name, len(measured), *shares, *widths))
    return ScoreTable(
        title="Memory: what a share books, unseen family",
        columns=(
            *("upper end", "rows", "above %", f"above %, batch <= {SMALL_BATCH}", "above %, mean of families"),
            *("end/point, median", "end/point, 90th percentile"),
        ),
        rows=tuple(lines),
        notes=("Goals: above <= 5, end/point <= 1.35 in the median.",),
    )


def _families_table(rows: MemoryRows, ours: HeldOut) -> ScoreTable:
    """Return the error of each family, the worst first."""
    families, sound = _families(rows), rows.sound
    lines: list[tuple[str | float | None, ...]] = []
    for family in sorted(set(rows.family)):
        which = sound & (families == family)
        if which.any():
            lines.append((family, *_row(family, rows.measured[which], ours.predicted[:, which])[1:]))
    lines.sort(key=lambda line: -float(line[2] or 0.0))
    return ScoreTable(
        title="Memory: unseen families, the worst first", columns=("family", *_COLUMNS[1:]), rows=tuple(lines)
    )
