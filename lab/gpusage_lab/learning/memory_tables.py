"""The tables of the target ``memory``: ours on families that were left out, what a run needs, and plainer methods.

The plainer methods are published estimates, formulas of two constants, and gradient boosting on the same terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta  # type: ignore[import-untyped, unused-ignore]
from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-untyped, unused-ignore]

from gpusage.predictors.arrays import BoolArray, FloatArray
from gpusage.predictors.memory.liveness import TRAINING_TERMS
from gpusage_hooks.units import MIB
from gpusage_lab.learning.memory_fit import HIGH, POINT, ROUNDING, SHARE_HIGH, NeedFit, had_no_choice
from gpusage_lab.learning.memory_rows import PEAKS, MemoryRows, OwnPeaks
from gpusage_lab.learning.scores import by_family, score
from gpusage_lab.learning.splits import Fold, is_sealed
from gpusage_lab.learning.targets import Cell, ScoreTable

COLUMNS = (
    *("predictor", "rows", "MAPE %", "median %", "within 10 %", "bias %", "above high %", "coverage %"),
    *("high/point", "high/low"),
)
OF_FAMILIES = ("MAPE %, mean of families", "coverage %, mean of families", "predictable %")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What `MemoryFit.predicted` says of each row, from fits that have not seen its group; NaN where none was made."""

    name: str
    predicted: FloatArray


def source_of(rows: MemoryRows) -> str:
    """Return, for people, how many rows there are and what was left out."""
    left_out = ", ".join(f"{count} {reason}" for reason, count in rows.skipped)
    return (
        f"{PEAKS}: {int(rows.sound.sum())} rows of {len(set(rows.family))} families; left out: {left_out}, "
        f"{int(rows.flat.sum())} flat, {int((rows.impossible & ~rows.flat).sum())} below what must be there."
    )


def peaks_table(rows: MemoryRows, which: BoolArray, title: str, predictors: Sequence[HeldOut]) -> ScoreTable:
    """Return the errors on the rows *which*: of each predictor, and of the first where the table says little else."""
    ours = predictors[0]
    share = 100.0 * len(rows.model) / (len(rows.model) + dict(rows.skipped).get("no card", 0))
    lines = [_line(rows, which, each.name, each) for each in predictors]
    lines += [_line(rows, chosen, name, ours) for name, chosen in _separate_rows(rows, which) if chosen.any()]
    return ScoreTable(
        title=title,
        columns=(*COLUMNS, *OF_FAMILIES),
        rows=tuple((*line, share if line[0] == ours.name else None) for line in lines),
        notes=(
            source_of(rows),
            "Goals: MAPE <= 5, median <= 3, above high <= 1, coverage 85 to 95.",
            "Predictable: rows of a model that has a card. Mean of families: each counts alike.",
        ),
    )


def own_peaks_table(own: OwnPeaks, predicted: FloatArray) -> ScoreTable:
    """Return the errors on peaks of gpusage profile."""
    title = "Memory: measured by gpusage profile"
    line = _row("gpusage, unseen family", own.measured, predicted)
    return ScoreTable(title=title, columns=COLUMNS, rows=(line,))


def need_table(rows: MemoryRows, need: NeedFit, ours: HeldOut) -> ScoreTable:
    """Return how often each end of what a run needs is too low, each row predicted without its family."""
    families = np.array(need.families)
    ends = (("point", POINT), ("high end: fits a GPU", HIGH), ("a share's end", SHARE_HIGH))
    lines = {name: (need.ratios > need.end(place) * (1 + ROUNDING), need.end(place)) for name, place in ends}
    fitted = which if (which := had_no_choice(rows)).sum() == len(families) else rows.sound
    above = lines["a share's end"][0] & (rows.measured[fitted] > ours.predicted[HIGH, fitted])
    count, most = int(above.sum()), 100 * float(beta.ppf(0.95, above.sum() + 1, (~above).sum()))
    return ScoreTable(
        title="Memory: what a run needs, unseen family",
        columns=("end", "rows", "above %", "above %, mean of families", "end/point"),
        rows=tuple(
            (name, len(families), 100 * float(misses.mean()), 100 * by_family(misses, families), end)
            for name, (misses, end) in {**lines, "that, and what it likely takes": (above, None)}.items()
        ),
        notes=(
            f"The {len(families)} of {int(rows.sound.sum())} rows that could take hardly more than they needed.",
            "Above: such a row took more than this end, which it bounds from above.",
            f"Without a wall the last line decides: {count} above it, so at most {most:.2g} % of such runs (95 %).",
        ),
    )


def families_table(rows: MemoryRows, ours: HeldOut) -> ScoreTable:
    """Return the error of each family that is not sealed, the worst first."""
    families = np.array(rows.family)
    shown = [family for family in sorted(set(rows.family)) if not is_sealed(family)]
    parts = {family: rows.sound & (families == family) for family in shown}
    lines = [
        _row(family, rows.measured[which], ours.predicted[:, which]) for family, which in parts.items() if which.any()
    ]
    lines.sort(key=lambda line: -float(line[2] or 0.0))
    title = "Memory: unseen families, the worst first"
    return ScoreTable(title=title, columns=("family", *COLUMNS[1:]), rows=tuple(lines))


def _separate_rows(rows: MemoryRows, which: BoolArray) -> Iterator[tuple[str, BoolArray]]:
    """Yield the rows that are to be seen alone beside those of a table."""
    yield "gpusage, sealed families", which & np.array([is_sealed(family) for family in rows.family], dtype=bool)
    yield "gpusage, left out: flat", rows.flat & ~which
    yield "gpusage, left out: impossible", rows.impossible & ~rows.flat & ~which


def _line(rows: MemoryRows, which: BoolArray, name: str, predictor: HeldOut) -> tuple[Cell, ...]:
    """Return a row's cells, `OF_FAMILIES` but for the last among them."""
    measured, families = rows.measured[which], np.array(rows.family)[which]
    low, point, high = predictor.predicted[:, which]
    missed = 100 * by_family(np.abs(point - measured) / measured, families)
    inside = (low <= measured) & (measured <= high)
    covered = None if np.array_equal(low, high) else 100 * by_family(inside, families)
    return (*_row(name, measured, predictor.predicted[:, which]), missed, covered)


def _row(name: str, measured: FloatArray, predicted: FloatArray) -> tuple[Cell, ...]:
    low, point, high = predicted
    figures = score(measured, point, low, high)
    cells = (figures.mape, figures.median, figures.within_10, figures.bias)
    if np.array_equal(low, high):
        return name, len(measured), *(100 * cell for cell in cells), None, None, None, None
    above = float((measured > high).mean())
    coverage = float(figures.coverage or 0.0)
    shares = tuple(100 * cell for cell in (*cells, above, coverage))
    return name, len(measured), *shares, float(np.median(high / point)), figures.width


Baseline = Callable[[MemoryRows, Sequence[Fold]], FloatArray]


def weights_only(rows: MemoryRows, _: Sequence[Fold]) -> FloatArray:
    """Return a context of 900 MiB and four times the weights."""
    return 900 * MIB + 4 * _term(rows, "weights")


def fake_tensor(rows: MemoryRows, _: Sequence[Fold]) -> FloatArray:
    """Return PyTorch's FakeTensor estimate as GPUMemNet published it."""
    return rows.fake_tensor


def fake_tensor_and_context(rows: MemoryRows, _: Sequence[Fold]) -> FloatArray:
    """Return the same with 1,600 MiB added, read off the measurements."""
    return rows.fake_tensor + 1600 * MIB


def two_constants(rows: MemoryRows, _: Sequence[Fold]) -> FloatArray:
    """Return 2,300 MiB, three times the weights, 1.13 times the kept tensors: constants read off the measurements."""
    return 2300 * MIB + 3 * _term(rows, "weights") + 1.13 * _term(rows, "saved")


def boosting(rows: MemoryRows, folds: Sequence[Fold]) -> FloatArray:
    """Return gradient boosting on the same terms, fitted to the logarithm on the same folds."""
    features, target = np.log1p(rows.terms), np.log(rows.measured)
    predicted: FloatArray = np.zeros(len(target))
    for fold in folds:
        train = fold.train[rows.sound[fold.train]]
        model = HistGradientBoostingRegressor(
            loss="absolute_error", learning_rate=0.08, max_iter=150, max_leaf_nodes=16, random_state=0
        )
        predicted[fold.test] = np.exp(model.fit(features[train], target[train]).predict(features[fold.test]))
    return predicted


def _term(rows: MemoryRows, name: str) -> FloatArray:
    column: FloatArray = rows.terms[:, TRAINING_TERMS.index(name)]
    return column


BASELINES: Mapping[str, Baseline] = {
    "gradient boosting on the same terms": boosting,
    "two constants": two_constants,
    "FakeTensor + 1,600 MiB": fake_tensor_and_context,
    "FakeTensor": fake_tensor,
    "weights only": weights_only,
}
"""By name, the best first."""
