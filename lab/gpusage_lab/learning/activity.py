"""Utilization and SM activity of a workload alone: the artifact's fit, and its scores on architectures never seen.

The SMs' part and the intervals are fitted on GPUMemNet's random networks. Real models (Lucid's solo runs, MISO's,
gpulets') are a test alone: their licences or their number forbid fitting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import (  # type: ignore[import-untyped, unused-ignore]
    RandomForestRegressor,
)

from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.artifacts import ActivityParameters, Card, ForestParameters
from gpusage.predictors.times.activity import GREATEST_SHARE, LEAST_SHARE, NAMES, read_trees, shares_around, sm_shares
from gpusage_lab.learning import activity_real, boosting
from gpusage_lab.learning.activity_rows import FILES, SM, UTILIZATION, Rows, own_sources, random_count, rows_of
from gpusage_lab.learning.artifacts import Artifact
from gpusage_lab.learning.scores import rmsle
from gpusage_lab.learning.splits import Fold, check_enough, leave_one_out, random_rows
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder

Line = tuple[Cell, ...]
RANDOM_FOLDS = 5
LEAST_ROWS = len(NAMES) + 1
"""With fewer of a kind, nobody can say how far predictions miss it."""
REAL = "real"
"""The kind of a site's own runs."""
GAP_S = 25e-6
"""For each kernel of a training step, beside the step time. Of 20 to 50 us it did well on the open families of Lucid,
Lambda, MISO and MLPerf alike: a judgement, as their licences and their number forbid fitting."""
LEAST_GAP_S = 1e-6
DOUBT_RUNS = 20
"""So many runs of a site's own count as much as `GAP_S`."""
_GAPS = 2
"""The column of `Rows.steps`."""


def fit(data: DataFolder) -> Sequence[Artifact]:
    """Fit the gaps and the trees on every row, and the intervals on architectures held out."""
    rows = _rows(data)
    held_out = _out_of_fold(rows, _unseen(rows), _ours)
    everything = np.arange(len(rows.kinds))
    parameters = ActivityParameters(
        features=NAMES,
        gap_s=gap_s(rows, everything),
        sm_share=_sm_share(rows, everything),
        misses=_misses(rows, held_out, everything).tolist(),
    )
    return (Artifact(name="activity", card=_card(data, rows, held_out), parameters=parameters),)


def gap_s(rows: Rows, train_rows: npt.NDArray[np.int64]) -> float:
    """Return the idle seconds that a host leaves for each kernel: `GAP_S`, moved to a site's own runs if it has some.

    The random networks do not count: they wait for their data, and so show nothing of other jobs' hosts.
    """
    own = train_rows[(np.array(rows.kinds)[train_rows] == REAL) & (rows.steps[train_rows, _GAPS] > 0)]
    busy_s, step_s, gaps = rows.steps[own].T
    idle_s = 100.0 * busy_s / rows.measured[own, UTILIZATION] - step_s
    apart = np.log(np.maximum(idle_s / gaps, LEAST_GAP_S) / GAP_S)
    return float(GAP_S * np.exp(np.median(apart) * len(own) / (len(own) + DOUBT_RUNS))) if len(own) else GAP_S


def _utilization(rows: Rows, gap_s: float) -> FloatArray:
    """Return the percent of the account."""
    busy_s, step_s, gaps = rows.steps.T
    return np.asarray(100.0 * np.minimum(busy_s / (step_s + gaps * gap_s), GREATEST_SHARE))


def _sm_share(rows: Rows, train_rows: npt.NDArray[np.int64]) -> ForestParameters:
    """Return the trees of the percent of the kernels' time in which SMs have work: in it waits cancel."""
    measured = rows.measured[train_rows]
    percents = 100.0 * np.minimum(measured[:, SM] / measured[:, UTILIZATION], 1.0)
    return boosting.fit_trees(rows.features[train_rows], np.log1p(percents))


def _card(data: DataFolder, rows: Rows, held_out: FloatArray) -> Card:
    """Return what the trees were fitted on, and how they do on architectures *held_out*."""
    spans = {name: (float(c.min()), float(c.max())) for name, c in zip(NAMES, rows.features.T, strict=True)}
    return Card(
        purpose="Gaps between kernels, and the SMs' part of kernels: utilization and SM activity of a workload alone.",
        fitted_on=(
            f"{', '.join(FILES)}: {random_count(rows)} training runs on an A100 of 40 GB",
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
            "Random networks of one generator on one GPU: the SMs' part and the intervals are fitted on them, no gaps.",
            "They wait for their data, so utilization from the graph alone misses them by far.",
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
                "They wait for their data, the more the larger the batch; ours leaves such waits out.",
                "Yeung et al. report 0.154 for utilization, on a random split of 81 runs of their own.",
            ),
        ),
        _transfer(rows),
        _coverage(rows, groups, *ends),
        activity_real.utilization_table(data),
    )


def _scored(rows: Rows, groups: Sequence[Fold]) -> tuple[tuple[Line, ...], FloatArray]:
    """Return one line per method and figure, and what ours predicts of each of *groups* that it has not seen."""
    methods: dict[str, Callable[[Rows, Fold], FloatArray]] = {
        "constant": _constant,
        "node times alone": lambda rows, fold: rows.roofline[fold.test],
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


def _transfer(rows: Rows) -> ScoreTable:
    """Return the errors of fits on other kinds of network, which were run with another program and other data."""
    folds = leave_one_out(rows.kinds, "kind")
    methods = {
        "constant": _constant,
        "Yeung's features, random forest": _yeung_forest,
        "Yeung's features, boosting": _yeung_boosting,
        "ours": _ours,
    }
    lines = [
        (f"{name}, utilization", *_errors(rows, _out_of_fold(rows, folds, method)[:, UTILIZATION], UTILIZATION))
        for name, method in methods.items()
    ]
    return ScoreTable(
        title="Utilization of random networks, a kind of network held out, RMSLE on percent",
        columns=("method", *(f"unseen kind: {part}" for part in ("all", "MLP", "CNN"))),
        rows=tuple(lines),
        notes=("Fitted on the one kind, scored on the other: MLP and CNN ran with programs and data of their own.",),
    )


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
    busy = _utilization(rows, gap_s(rows, fold.train))[fold.test]
    parts = sm_shares(read_trees(_sm_share(rows, fold.train)), rows.features[fold.test])
    return np.stack([busy, busy * parts], axis=1)


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


def _misses(rows: Rows, predictions: FloatArray, train_rows: npt.NDArray[np.int64]) -> FloatArray:
    """Return how far truths lie below and above *predictions*: beyond each end are at most 5 % of any kind.

    Kinds with fewer than `LEAST_ROWS` do not count.
    """
    kinds = np.array(rows.kinds)[train_rows]
    apart = (_odds(rows.measured) - _odds(predictions))[train_rows]
    many = [kind for kind, count in Counter(kinds.tolist()).items() if count >= LEAST_ROWS]
    lows, highs = np.transpose([np.quantile(apart[kinds == kind], (0.05, 0.95), axis=0) for kind in many], (1, 0, 2))
    return np.asarray(np.maximum(np.stack([-lows.min(axis=0), highs.max(axis=0)], axis=1), 0.0))


def _odds(percent: FloatArray) -> FloatArray:
    share = np.clip(percent / 100.0, LEAST_SHARE, GREATEST_SHARE)
    return np.asarray(np.log(share / (1.0 - share)))


def _ends(rows: Rows, folds: Sequence[Fold], held_out: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return low and high ends, percent, of the intervals that the other architectures' errors give."""
    low, high = np.zeros_like(held_out), np.zeros_like(held_out)
    for fold in folds:
        below, above = np.exp(_misses(rows, held_out, fold.train)).T
        for row, figures in zip(fold.test, shares_around(held_out[fold.test] / 100.0, below, above), strict=True):
            low[row], high[row] = zip(*((100.0 * each.low, 100.0 * each.high) for each in figures), strict=True)
    high[:, UTILIZATION] = np.maximum(high[:, UTILIZATION], rows.roofline[:, UTILIZATION])
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
