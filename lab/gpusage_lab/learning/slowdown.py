"""The target ``slowdown``: how far the truth lies from what a part of a GPU is predicted to cost.

The point is the ratio of two predictions of the step-time predictor, with nothing of its own to learn. What is learned
is how a known step time is weighed (`slowdown_host`), and the width of the point's interval: in the worst of the
sources 90 % of the measurements lie inside, and 5 % above, for a promise rests on the upper end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from gpusage.predictors.arrays import FloatArray, IntArray
from gpusage.predictors.artifacts import Card, SlowdownParameters
from gpusage.predictors.colocation import PartnerExponents
from gpusage.predictors.host import HostUncertainty
from gpusage.predictors.slowdown import BusyShareEvidence, SlowdownDeviations, share_interval, slowdowns
from gpusage_lab.learning.artifacts import Artifact
from gpusage_lab.learning.scores import score
from gpusage_lab.learning.slowdown_host import GOALS, fitted_host
from gpusage_lab.learning.slowdown_partners import cautious, fitted_partners, partners_rows, partners_table
from gpusage_lab.learning.slowdown_rows import FILES, SlowdownColumns, SlowdownRow, slowdown_rows, with_predictions
from gpusage_lab.learning.splits import by_group, check_enough
from gpusage_lab.learning.targets import Points, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.zoo.cards import Zoo, load_zoo

FOLDS = 10
COVERAGE = 0.90
ABOVE = 0.05
"""Of the rows of each source: inside the interval, and above it."""
GROWTHS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
NOISES = (0.04, 0.06, 0.08, 0.10, 0.12)
WORKINGS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0)
EVIDENCE: tuple[BusyShareEvidence, ...] = ("graph", "step_time", "utilization")
_WORDS = {"graph": "from the graph alone", "step_time": "step time known", "utilization": "utilization known"}


def fit(data: DataFolder) -> Sequence[Artifact]:
    """Fit the widths on every row, and what partners add."""
    zoo = load_zoo()
    columns = columns_of(data, zoo)
    fitted = fitted_on(columns, np.arange(len(columns.rows)))
    partners = cautious(fitted_partners(partners_rows(data, zoo, fitted)))
    return [_artifact(columns, fitted, partners, held_out(columns))]


def evaluate(data: DataFolder) -> Sequence[ScoreTable]:
    """Score each source by what is known, with plainer rules beside; widths are of other families."""
    return evaluate_with(data, load_zoo())


def evaluate_with(data: DataFolder, zoo: Zoo) -> Sequence[ScoreTable]:
    """Do as `evaluate` with the cards of *zoo*."""
    columns = columns_of(data, zoo)
    return tables_of(columns, held_out(columns), data, zoo)


def tables_of(
    columns: SlowdownColumns, predicted: Mapping[BusyShareEvidence, FloatArray], data: DataFolder, zoo: Zoo
) -> Sequence[ScoreTable]:
    """Score what is *predicted* of *columns*, one table a source, and what partners add."""
    fitted = fitted_on(columns, np.arange(len(columns.rows)))
    tables = [_table(columns, source, predicted) for source in FILES]
    partner_rows = partners_rows(data, zoo, fitted)
    return [*tables, partners_table(partner_rows)] if partner_rows else tables


def columns_of(data: DataFolder, zoo: Zoo) -> SlowdownColumns:
    """Return every measurement of *data* whose model *zoo* has, with what is predicted of it."""
    rows = slowdown_rows(data, zoo)
    check_enough([row.family for row in rows], "families")
    return with_predictions(rows, zoo)


def fitted_on(columns: SlowdownColumns, train: IntArray) -> SlowdownDeviations:
    """Return the narrowest widths at which 90 % of the rows *train* lie inside, whatever is known of the job.

    First, how a known step time is weighed between host and GPU is fitted on the same rows.
    What a share does to the GPU's own time, and noise, are fitted where the step time is known; then, for each kind of
    knowledge, how far the part of the step that the GPU works may lie from what is known.
    """
    host = fitted_host(columns, train)
    columns = columns.weighed(host)
    common = min(
        (_common(host, *each) for each in product(GROWTHS, NOISES, WORKINGS)),
        key=lambda tried: _loss(columns, train, "step_time", tried),
    )
    working = dict(common.working)
    for evidence in EVIDENCE:
        if evidence not in working:
            working[evidence] = _around(columns, train, evidence, common)
    return replace(common, working=working)


def _around(
    columns: SlowdownColumns, train: IntArray, evidence: BusyShareEvidence, common: SlowdownDeviations
) -> tuple[float, float]:
    """Return how far the part of the step that the GPU works may lie from what *evidence* says."""
    return min(
        product(WORKINGS, WORKINGS),
        key=lambda each: _loss(columns, train, evidence, replace(common, working={evidence: each})),
    )


def _common(host: HostUncertainty, growth: float, noise: float, busy_share: float) -> SlowdownDeviations:
    return SlowdownDeviations(growth=growth, noise=noise, working={"step_time": (busy_share, busy_share)}, host=host)


def _loss(
    columns: SlowdownColumns, train: IntArray, evidence: BusyShareEvidence, deviations: SlowdownDeviations
) -> tuple[float, float]:
    """Return by how much the worst source misses 90 % inside or 5 % above, then the mean width; the least is best."""
    sources = [train[columns.source[train] == source] for source in FILES]
    known = [rows[np.isfinite(columns.working(evidence)[rows])] for rows in sources]
    scores = [_covered(columns, evidence, deviations, rows) for rows in known if len(rows)]
    misses = (max(COVERAGE - covered, above - ABOVE, 0.0) for covered, above, _ in scores)
    return max(misses, default=0.0), sum(width for _, _, width in scores)


def _covered(
    columns: SlowdownColumns, evidence: BusyShareEvidence, deviations: SlowdownDeviations, rows: IntArray
) -> tuple[float, float, float]:
    """Return the parts of *rows* inside the interval and above it, and the mean logarithm of its width."""
    low, _, high = _predicted(columns, evidence, deviations, rows)
    measured = columns.measured[rows]
    inside, above = (low <= measured) & (measured <= high), measured > high
    return float(inside.mean()), float(above.mean()), float(np.log(high / low).mean())


def _predicted(
    columns: SlowdownColumns, evidence: BusyShareEvidence, deviations: SlowdownDeviations, which: IntArray
) -> FloatArray:
    working = share_interval(columns.working(evidence)[which], evidence, deviations)
    return slowdowns(working, columns.growth[which], deviations)


def held_out(columns: SlowdownColumns) -> dict[BusyShareEvidence, FloatArray]:
    """Return low end, point and high end of each row by what is known, the widths of other families; else NaN."""
    predicted = {evidence: np.full((3, len(columns.rows)), np.nan) for evidence in EVIDENCE}
    for fold in by_group([row.family for row in columns.rows], FOLDS, "family"):
        fitted = fitted_on(columns, fold.train)
        weighed = columns.weighed(fitted.host)
        for evidence, ends in predicted.items():
            ends[:, fold.test] = _predicted(weighed, evidence, fitted, fold.test)
    return predicted


def baselines(columns: SlowdownColumns) -> Iterator[tuple[str, FloatArray]]:
    """Yield plainer rules by name, and what each says of every row."""
    part = np.array([row.part for row in columns.rows])
    yield "no slowdown", np.ones(len(part))
    yield "in proportion to the SMs", 1.0 / part
    yield "by predicted SM activity", np.maximum(columns.sm_activity / part, 1.0)


_COLUMNS = ("predictor", "rows", "MAPE %", "median %", "bias %", "coverage %", "high/low")


def _table(columns: SlowdownColumns, source: str, predicted: Mapping[BusyShareEvidence, FloatArray]) -> ScoreTable:
    measured, of_source = columns.measured, columns.source == source
    lines: list[tuple[str | float | None, ...]] = []
    for evidence, ends in predicted.items():
        which = of_source & np.isfinite(ends[1])
        if which.any():
            low, point, high = ends[:, which]
            scored = score(measured[which], point, low, high)
            cells = (scored.mape, scored.median, scored.bias, scored.coverage or 0.0)
            lines.append(
                (f"gpusage, {_WORDS[evidence]}", scored.row_count, *(100 * cell for cell in cells), scored.width)
            )
    for name, point in baselines(columns):
        scored = score(measured[of_source], point[of_source])
        errors = (scored.mape, scored.median, scored.bias)
        lines.append((name, scored.row_count, *(100 * error for error in errors), None, None))
    return ScoreTable(
        title=f"Slowdown on a part of a GPU: {source}",
        columns=_COLUMNS,
        rows=tuple(lines),
        notes=(f"Goal with the step time known: <= {100 * GOALS[source]:.0f} %; coverage 85 to 95.",),
        points=(_points(columns, of_source, predicted["step_time"]),),
    )


def _points(columns: SlowdownColumns, which: FloatArray, predicted: FloatArray) -> Points:
    low, point, high = predicted[:, which]
    return Points(
        title="Slowdown, step time known",
        unit="x",
        measured=columns.measured[which].tolist(),
        predicted=point.tolist(),
        low=low.tolist(),
        high=high.tolist(),
        labels=[_label(columns.rows[index]) for index in np.flatnonzero(which)],
    )


def _range(rows: Sequence[SlowdownRow], figure: Callable[[SlowdownRow], float]) -> tuple[float, float]:
    """Return the least and the greatest *figure* of *rows*."""
    figures = [figure(row) for row in rows]
    return float(min(figures)), float(max(figures))


def _label(row: SlowdownRow) -> str:
    return f"{row.key}, batch {row.workload.batch_size}, {100 * row.part:.0f} %"


def _errors(measured: FloatArray, held_out: Mapping[BusyShareEvidence, FloatArray]) -> dict[str, float]:
    """Return the error and the coverage of what is predicted of families that were *held_out*, by what is known."""
    errors = {}
    for evidence, ends in held_out.items():
        which = np.isfinite(ends[1])
        low, point, high = ends[:, which]
        scored = score(measured[which], point, low, high)
        errors[f"unseen family, {_WORDS[evidence]}, MAPE"] = scored.mape
        errors[f"unseen family, {_WORDS[evidence]}, inside the interval"] = scored.coverage or 0.0
    return errors


def _artifact(
    columns: SlowdownColumns,
    fitted: SlowdownDeviations,
    partners: PartnerExponents,
    held_out: Mapping[BusyShareEvidence, FloatArray],
) -> Artifact:
    counts = {source: sum(row.source == source for row in columns.rows) for source in FILES}
    return Artifact(
        name="slowdown",
        card=Card(
            purpose="How far the truth lies from the predicted slowdown of a job on a part of a GPU, alone there; "
            "and by which power of the number of jobs on the GPU its own time grows.",
            fitted_on=tuple(f"{source}: {count} rows" for source, count in counts.items()),
            licences=("RaPP: Apache-2.0", "ParvaGPU: MIT", "MISO: MIT"),
            ranges={
                "batch_size": _range(columns.rows, lambda row: row.workload.batch_size),
                "part_of_the_gpu": _range(columns.rows, lambda row: row.part),
            },
            errors=_errors(columns.measured, held_out),
            notes=(
                "The point is a ratio of two predicted step times, with nothing of its own to learn.",
                "How a known step time is weighed between host and GPU: for the worst source against its goal.",
                "PartnerExponents: equal processes without percentages (ParvaGPU).",
            ),
        ),
        parameters=SlowdownParameters(
            growth=fitted.growth,
            noise=fitted.noise,
            working=dict(fitted.working),
            partners={"average": partners.average, "bad": partners.bad},
            host={"launch_s": fitted.host.launch_s, "host": fitted.host.host, "own": fitted.host.own},
        ),
    )
