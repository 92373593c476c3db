"""Utilization and SM activity: fitted on GPUMemNet's random networks, tested on architectures never seen.

Real models (Lucid's solo runs, MISO's, gpulets') are a test alone: their licences or their number forbid fitting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import (  # type: ignore[import-untyped, unused-ignore]
    RandomForestRegressor,
)

from gpusage.predictors.activity.activities import NEARLY_BUSY, deviations_of, regions_of, shares
from gpusage.predictors.activity.features import NAMES
from gpusage.predictors.learned.artifacts import ActivityParameters, Card, RegionParameters
from gpusage.predictors.learned.intervals import NINETY_PERCENT
from gpusage.predictors.learned.trees import read_trees
from gpusage_lab.learning import activity_known, boosting, random_networks
from gpusage_lab.learning.activity_rows import SM, UTILIZATION, Rows, own_sources, random_count, rows_of
from gpusage_lab.learning.artifacts import Artifact
from gpusage_lab.learning.scores import rmsle
from gpusage_lab.learning.splits import Fold, check_enough, leave_one_out, random_rows
from gpusage_lab.learning.targets import Cell, Points, ScoreTable
from gpusage_lab.measurements.tables import DataFolder

FloatArray = npt.NDArray[np.float64]
Line = tuple[Cell, ...]
RANDOM_FOLDS = 5
LEAST_ROWS = len(NAMES) + 1
"""With fewer, nobody can say where a kind of network lies among the features."""
RIDGE = 1e-2
"""Keeps directions in which the networks hardly differ from making everything else look far."""


def fit(data: DataFolder) -> Sequence[Artifact]:
    """Fit the trees on every row, and the intervals on architectures held out."""
    rows = _rows(data)
    held_out = _out_of_fold(rows, _unseen(rows), _ours)
    far = _odds_errors(rows, _out_of_fold(rows, leave_one_out(rows.kinds, "kind"), _ours))
    parameters = ActivityParameters(
        features=NAMES,
        gpu_utilization=boosting.fit_trees(rows.features, np.log1p(rows.measured[:, UTILIZATION])),
        sm_activity=boosting.fit_trees(rows.features, np.log1p(rows.measured[:, SM])),
        regions=_regions(rows, _odds_errors(rows, held_out), np.arange(len(rows.kinds))),
        far=_deviations(far).tolist(),
    )
    return (Artifact(name="activity", card=_card(data, rows, held_out), parameters=parameters),)


def _card(data: DataFolder, rows: Rows, held_out: FloatArray) -> Card:
    """Return what the trees were fitted on, and how they do on architectures *held_out*."""
    spans = {name: (float(c.min()), float(c.max())) for name, c in zip(NAMES, rows.features.T, strict=True)}
    return Card(
        purpose="GPU utilization (NVML) and SM activity of a workload alone on a GPU, from its node times.",
        fitted_on=(
            f"{', '.join(random_networks.FILES)}: {random_count(rows)} training runs on an A100 of 40 GB",
            *(f"{source}: {count} rows" for source, count in sorted(own_sources(data).items())),
            *(f"left out, {why}: {count} rows" for why, count in rows.left_out.items()),
        ),
        licences=(
            "GPUMemNet: published research data without a licence file; figures cited, no row kept",
            "gpusage profile: our own",
        ),
        ranges=spans,
        errors={
            "RMSLE of utilization, unseen architecture": rmsle(rows.measured[:, UTILIZATION], held_out[:, UTILIZATION]),
            "RMSLE of SM activity, unseen architecture": rmsle(rows.measured[:, SM], held_out[:, SM]),
        },
        notes=(
            "Random networks of one generator on one GPU: real models differ more, as gpusage evaluate shows.",
            "Memory activity has no measurements that may be learned from; it stays analytic.",
        ),
    )


def evaluate(data: DataFolder) -> Sequence[ScoreTable]:
    """Score on architectures held out and, for comparison with papers, on random rows; then on real models."""
    rows = _rows(data)
    groups = _unseen(rows)
    lines, held_out = _scored(rows, groups)
    ends = _ends(rows, groups, held_out)
    heads = [f"{split}: {part}" for split in ("unseen type", "random rows") for part in ("all", "networks", "CNN")]
    return (
        ScoreTable(
            title="Activity of random networks, RMSLE on percent",
            columns=("method", *(head.replace("networks", "MLP") for head in heads)),
            rows=lines,
            notes=(
                f"{len(rows.measured)} runs; left out: {', '.join(f'{n} {why}' for why, n in rows.left_out.items())}.",
                "Yeung et al. report 0.154 for utilization, on a random split of 81 runs of their own.",
            ),
            points=_points(rows, held_out, *ends),
        ),
        _coverage(rows, groups, *ends),
        *activity_known.tables(data),
    )


def _scored(rows: Rows, groups: Sequence[Fold]) -> tuple[tuple[Line, ...], FloatArray]:
    """Return one line per method and figure, and what ours predicts of each of *groups* that it has not seen."""
    methods: dict[str, Callable[[Rows, Fold], FloatArray]] = {
        "constant": _constant,
        "node times alone": lambda given, fold: given.roofline[fold.test],
        "Yeung's features, random forest": _yeung_forest,
        "Yeung's features, boosting": _yeung_boosting,
        "ours": _ours,
    }
    lines: list[Line] = []
    held_out = np.zeros((0, 2))
    for name, method in methods.items():
        unseen = _out_of_fold(rows, groups, method)
        chance = _out_of_fold(rows, random_rows(len(rows.measured), RANDOM_FOLDS), method)
        held_out = unseen
        for column, what in ((UTILIZATION, "utilization"), (SM, "SM activity")):
            figures = [_errors(rows, predictions[:, column], column) for predictions in (unseen, chance)]
            lines.append((f"{name}, {what}", *figures[0], *figures[1]))
    return tuple(lines), held_out


def _rows(data: DataFolder) -> Rows:
    """Return the rows, once there are enough to leave a kind of network out, and to say where another lies."""
    rows = rows_of(data)
    check_enough(rows.kinds, "kinds of network", least_rows=LEAST_ROWS)
    return rows


def _unseen(rows: Rows) -> list[Fold]:
    return leave_one_out(rows.architectures, "architecture")


def _out_of_fold(rows: Rows, folds: Sequence[Fold], method: Callable[[Rows, Fold], FloatArray]) -> FloatArray:
    predictions = np.zeros_like(rows.measured)
    for fold in folds:
        predictions[fold.test] = method(rows, fold)
    return predictions


def _constant(rows: Rows, fold: Fold) -> FloatArray:
    level = np.expm1(np.log1p(rows.measured[fold.train]).mean(axis=0))
    return np.broadcast_to(level, (len(fold.test), 2))


def _ours(rows: Rows, fold: Fold) -> FloatArray:
    fitted = [
        boosting.fit_trees(rows.features[fold.train], np.log1p(rows.measured[fold.train, column]))
        for column in (UTILIZATION, SM)
    ]
    return 100.0 * shares(read_trees(*fitted), rows.features[fold.test])


def _yeung_forest(rows: Rows, fold: Fold) -> FloatArray:
    model: Any = RandomForestRegressor(60, min_samples_leaf=2, random_state=0)
    return np.asarray(model.fit(rows.yeung[fold.train], rows.measured[fold.train]).predict(rows.yeung[fold.test]))


def _yeung_boosting(rows: Rows, fold: Fold) -> FloatArray:
    columns = [
        boosting.predict(
            boosting.fit_trees(rows.yeung[fold.train], np.log1p(rows.measured[fold.train, column])),
            rows.yeung[fold.test],
        )
        for column in (UTILIZATION, SM)
    ]
    return np.expm1(np.stack(columns, axis=1))


def _errors(rows: Rows, predictions: FloatArray, column: int) -> tuple[float, float, float]:
    kinds, measured = np.array(rows.kinds), rows.measured[:, column]
    parts = [np.full(len(kinds), fill_value=True), kinds == "mlp", kinds == "cnn"]
    first, second, third = (rmsle(measured[part], predictions[part]) if part.any() else float("nan") for part in parts)
    return first, second, third


def _odds_errors(rows: Rows, predictions: FloatArray) -> FloatArray:
    return np.asarray(np.abs(_odds(rows.measured) - _odds(predictions)))


def _deviations(errors: FloatArray) -> FloatArray:
    return np.asarray(np.quantile(errors, 0.9, axis=0)) / NINETY_PERCENT


def _regions(rows: Rows, errors: FloatArray, taught: npt.NDArray[np.int64]) -> list[RegionParameters]:
    """Return where each kind of network lies, and how far held-out ones of it were missed."""
    kinds, regions = np.array(rows.kinds), []
    for kind in sorted(set(rows.kinds)):
        chosen = taught[kinds[taught] == kind]
        if len(chosen) < LEAST_ROWS:
            continue
        features = rows.features[chosen]
        spread = np.cov(features.T)
        precision = np.linalg.inv(spread + RIDGE * np.diag(np.diag(spread) + RIDGE))
        away = features - features.mean(axis=0)
        reach = float(np.quantile(((away @ precision) * away).sum(axis=1), 0.99))
        regions.append(
            RegionParameters(
                mean=features.mean(axis=0).tolist(),
                precision=precision.tolist(),
                reach=reach,
                deviations=_deviations(errors[chosen]).tolist(),
            )
        )
    return regions


def _odds(percent: FloatArray) -> FloatArray:
    share = np.clip(percent / 100.0, 1e-4, 0.985)
    return np.asarray(np.log(share / (1.0 - share)))


def _ends(rows: Rows, folds: Sequence[Fold], held_out: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return low and high ends, percent, of the intervals that the other architectures' errors give."""
    errors = _odds_errors(rows, held_out)
    far = _deviations(_odds_errors(rows, _out_of_fold(rows, leave_one_out(rows.kinds, "kind"), _ours)))
    reach = np.zeros_like(errors)
    for fold in folds:
        regions = regions_of(_regions(rows, errors, fold.train))
        reach[fold.test] = NINETY_PERCENT * deviations_of(regions, far, rows.features[fold.test])
    low, high = (100.0 / (1.0 + np.exp(-(_odds(held_out) + way * reach))) for way in (-1.0, 1.0))
    busy = held_out[:, UTILIZATION] >= 100.0 * NEARLY_BUSY
    high[busy, UTILIZATION] = np.maximum(high, rows.roofline)[busy, UTILIZATION]
    return low, high


def _coverage(rows: Rows, folds: Sequence[Fold], low: FloatArray, high: FloatArray) -> ScoreTable:
    """Return how often the truth lay inside, and how wide the intervals are."""
    inside = (low <= rows.measured) & (rows.measured <= high)
    kinds = np.array(rows.kinds)
    lines: list[tuple[Cell, ...]] = []
    for column, what in ((UTILIZATION, "utilization"), (SM, "SM activity")):
        parts = [100.0 * float(inside[kinds == kind, column].mean()) for kind in ("mlp", "cnn")]
        worst = min(100.0 * float(inside[fold.test, column].mean()) for fold in folds)
        width = float(np.median((high - low)[:, column]))
        lines.append((what, 100.0 * float(inside[:, column].mean()), *parts, worst, width))
    return ScoreTable(
        title="Activity: coverage of the 90 % intervals on unseen architecture types, %",
        columns=("figure", "all", "MLP", "CNN", "worst type", "width, points"),
        rows=tuple(lines),
    )


def _points(rows: Rows, held_out: FloatArray, low: FloatArray, high: FloatArray) -> tuple[Points, ...]:
    return tuple(
        Points(
            title=f"{what}, architecture types held out",
            unit="%",
            measured=rows.measured[:, column].tolist(),
            predicted=held_out[:, column].tolist(),
            low=low[:, column].tolist(),
            high=high[:, column].tolist(),
            labels=rows.architectures,
        )
        for column, what in ((UTILIZATION, "GPU utilization"), (SM, "SM activity"))
    )
