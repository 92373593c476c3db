"""The tables of the target ``memory``: ours on families that were left out, the baselines, and what a share books."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpusage.predictors.learned.arrays import BoolArray, FloatArray
from gpusage_hooks.units import GIB
from gpusage_lab.learning.memory_rows import PEAKS, MemoryRows, OwnPeaks
from gpusage_lab.learning.scores import by_family, score
from gpusage_lab.learning.seal import is_sealed
from gpusage_lab.learning.targets import Cell, Points, ScoreTable

COLUMNS = (
    *("predictor", "rows", "MAPE %", "median %", "within 10 %", "bias %", "above high %", "coverage %"),
    *("high/point", "high/low"),
)
OF_FAMILIES = ("MAPE %, mean of families", "coverage %, mean of families", "predictable %")
SMALL_BATCH = 16
CAPACITY_BYTES = 40 * GIB
"""Of the A100 on which the peaks were measured."""


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
    lines += [_line(rows, chosen, name, ours) for name, chosen in _alone(rows, which) if chosen.any()]
    return ScoreTable(
        title=title,
        columns=(*COLUMNS, *OF_FAMILIES),
        rows=tuple((*line, share if line[0] == ours.name else None) for line in lines),
        notes=(
            source_of(rows),
            "Goals: MAPE <= 5, median <= 3, above high <= 1, coverage 85 to 95.",
            "Predictable: rows of a model that has a card. Mean of families: each counts alike.",
        ),
        points=(_points(title, rows.measured[which], ours.predicted[:, which], np.array(rows.model)[which].tolist()),),
    )


def own_peaks_table(own: OwnPeaks, predicted: FloatArray) -> ScoreTable:
    """Return the errors on peaks of gpusage profile."""
    title = "Memory: measured by gpusage profile"
    line = _row("gpusage, unseen family", own.measured, predicted)
    points = (_points(title, own.measured, predicted, own.label),)
    return ScoreTable(title=title, columns=COLUMNS, rows=(line,), points=points)


def share_table(rows: MemoryRows, ours: HeldOut) -> ScoreTable:
    """Return how often each upper end fails as a cap, and what it leaves to others."""
    sound = rows.sound
    _, point, high, share_high = ours.predicted[:, sound]
    ends = {
        "gpusage, a share's end": share_high,
        "gpusage, the high end": high,
        "point x 1.1": 1.1 * point,
        "point x 1.3": 1.3 * point,
        "FakeTensor": rows.fake_tensor[sound],
        "the whole GPU": np.full_like(point, CAPACITY_BYTES),
    }
    return ScoreTable(
        title="Memory: what a share books, unseen family",
        columns=(
            *("upper end", "rows", "above %", f"above %, batch <= {SMALL_BATCH}", "above %, mean of families"),
            *("end/point, median", "end/point, 90th percentile", "GiB conserved, mean"),
        ),
        rows=tuple(_cap_line(name, rows, end, point) for name, end in ends.items()),
        notes=(
            "Goals: above <= 5, end/point <= 1.35 in the median.",
            "Above: the end, used as a cap, fails; xMem calls it the probability of estimation failure.",
            "GiB conserved, after xMem: of 40 GiB, what the cap leaves to others; a cap that fails costs itself.",
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


def _alone(rows: MemoryRows, which: BoolArray) -> Iterator[tuple[str, BoolArray]]:
    """Yield the rows that are to be seen alone beside those of a table."""
    yield "gpusage, sealed families", which & np.array([is_sealed(family) for family in rows.family], dtype=bool)
    yield "gpusage, left out: flat", rows.flat & ~which
    yield "gpusage, left out: impossible", rows.impossible & ~rows.flat & ~which


def _line(rows: MemoryRows, which: BoolArray, name: str, predictor: HeldOut) -> tuple[Cell, ...]:
    """Return a row's cells, `OF_FAMILIES` but for the last among them."""
    measured, families = rows.measured[which], np.array(rows.family)[which]
    low, point, high, _ = predictor.predicted[:, which]
    missed = 100 * by_family(np.abs(point - measured) / measured, families)
    inside = (low <= measured) & (measured <= high)
    covered = None if np.array_equal(low, high) else 100 * by_family(inside, families)
    return (*_row(name, measured, predictor.predicted[:, which]), missed, covered)


def _row(name: str, measured: FloatArray, predicted: FloatArray) -> tuple[Cell, ...]:
    low, point, high, _ = predicted
    figures = score(measured, point, low, high)
    cells = (figures.mape, figures.median, figures.within_10, figures.bias)
    if np.array_equal(low, high):
        return name, len(measured), *(100 * cell for cell in cells), None, None, None, None
    above = float((measured > high).mean())
    coverage = float(figures.coverage or 0.0)
    shares = tuple(100 * cell for cell in (*cells, above, coverage))
    return name, len(measured), *shares, float(np.median(high / point)), figures.width


def _cap_line(name: str, rows: MemoryRows, end: FloatArray, point: FloatArray) -> tuple[Cell, ...]:
    sound = rows.sound
    measured, small = rows.measured[sound], rows.batch_size[sound] <= SMALL_BATCH
    above = measured > end
    shares = (float(above.mean()), float(above[small].mean()), by_family(above, np.array(rows.family)[sound]))
    widths = (float(np.quantile(end / point, share)) for share in (0.5, 0.9))
    conserved = np.where(above, -end, CAPACITY_BYTES - end) / GIB
    return (name, len(measured), *(100 * share for share in shares), *widths, float(conserved.mean()))


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
