"""Yeung et al. (HotCloud 2020): utilization from a graph's features, a random forest against boosting, and ours.

Their 81 runs on a GTX 1080 are not public. Two public sets stand in: GPUMemNet's random networks on an A100, and
Lucid's 66 runs of real models on an RTX 3090, which nothing that is shipped was ever fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import (  # type: ignore[import-untyped, unused-ignore]
    GradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.model_selection import (  # type: ignore[import-untyped, unused-ignore]
    GridSearchCV,
    KFold,
)

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.times.activity import features_of
from gpusage_lab.learning import activity_rows, boosting
from gpusage_lab.learning.activity_real import yeung_features
from gpusage_lab.learning.scores import rank_correlation, rmsle
from gpusage_lab.learning.splits import Fold, leave_one_out
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.named_jobs import LUCID, workload
from gpusage_planning.zoo import load_zoo

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
FILES = ("gpumemnet_cnn.csv", "gpumemnet_mlp_step1.csv")
PAPER_RMSLE = 0.154
PAPER_RUNS = 81
A_TYPE = 50
"""Networks of each architecture type that are looked at: else four types of perceptrons outvote seven others."""
SPLITS, DRAWS = 2, 5
TESTED_SHARE = 0.2
GRID_FOLDS = 3
TREES = 60
FOREST_GRID = {"max_depth": [4, 8, None]}
BOOSTING_GRID = {"max_depth": [2, 4]}


class Runs(NamedTuple):
    """Measured runs: Yeung's features, ours, percent, architecture type; what is shipped where it can be tested."""

    yeung: FloatArray
    ours: FloatArray
    measured: FloatArray
    kinds: tuple[str, ...]
    shipped: FloatArray | None = None


Method = Callable[[Runs, IntArray, IntArray], FloatArray]
"""(runs, training runs, tested runs) -> percent."""


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return the experiment's tables; the runs on real models where their file is there."""
    everything = random_networks(data)
    shown = [_networks_table(everything)]
    if "lucid_solo.csv" in data:
        shown.append(_real_table(real_runs(data)))
    return shown


def random_networks(data: DataFolder) -> Runs:
    """Return GPUMemNet's networks."""
    rows = activity_rows.rows_of(data)
    return Runs(rows.yeung, rows.features, rows.measured[:, activity_rows.UTILIZATION], rows.architectures)


def real_runs(data: DataFolder) -> Runs:
    """Return Lucid's runs, with what the shipped predictor says of them."""
    gpu = builtin_catalogue().find("rtx-3090")
    yeung, ours, measured, kinds, shipped = [], [], [], [], []
    for row in data.read("lucid_solo.csv").to_dict("records"):
        job = LUCID[row["model"]]
        graph, run = load_zoo().graph(job.key), workload(job, row["batch_size"], half=bool(row["amp"]))
        yeung.append([*yeung_features(graph, run.batch_size), float(row["amp"])])
        analysis = WorkloadAnalysis(graph, run)
        ours.append(features_of(analysis.work, analysis.timing([gpu]))[0])
        shipped.append(100.0 * analysis.activity([gpu])[0].gpu_utilization.value)
        measured.append(float(row["gpu_util_pct"]))
        kinds.append(str(row["model"]))
    return Runs(np.array(yeung), np.array(ours), np.array(measured), tuple(kinds), np.array(shipped))


def methods() -> Mapping[str, Method]:
    """Return what is compared; each learns from the training rows alone."""
    return {
        "constant": _constant,
        "Yeung's features, random forest": _searched(_forest, "yeung"),
        "Yeung's features, gradient boosting": _searched(_gradient_boosting, "yeung"),
        "our features, random forest": _searched(_forest, "ours"),
        "ours": _ours,
    }


def random_split(count: int, seed: int) -> Fold:
    """Return 80 % of *count* rows for training and 20 % for tests, by chance, as in the paper."""
    order = np.random.default_rng(seed).permutation(count)
    tested = max(1, round(TESTED_SHARE * count))
    return Fold(name="random 80/20", train=np.sort(order[tested:]), test=np.sort(order[:tested]))


def some_of_each(kinds: Sequence[str], most: int) -> IntArray:
    """Return at most *most* indices of each kind, drawn by chance."""
    generator, names = np.random.default_rng(0), np.array(kinds)
    drawn = [generator.permutation(np.flatnonzero(names == kind))[:most] for kind in sorted(set(kinds))]
    return np.sort(np.concatenate(drawn))


def select_runs(runs: Runs, rows: IntArray) -> Runs:
    """Return the runs *rows*."""
    shipped = None if runs.shipped is None else runs.shipped[rows]
    kinds = tuple(runs.kinds[row] for row in rows)
    return Runs(runs.yeung[rows], runs.ours[rows], runs.measured[rows], kinds, shipped)


def error(runs: Runs, method: Method, folds: Sequence[Fold]) -> float:
    """Return the RMSLE over all rows that *folds* test."""
    predictions = [method(runs, fold.train, fold.test) for fold in folds]
    return rmsle(np.concatenate([runs.measured[fold.test] for fold in folds]), np.concatenate(predictions))


def _networks_table(everything: Runs) -> ScoreTable:
    runs = select_runs(everything, some_of_each(everything.kinds, A_TYPE))
    unseen = leave_one_out(runs.kinds, "architecture type")
    chance = [random_split(len(runs.measured), seed) for seed in range(SPLITS)]
    draws = [_draw(runs, seed) for seed in range(DRAWS)]
    lines: list[tuple[str | float | None, ...]] = []
    for name, method in methods().items():
        small = float(np.mean([error(draw, method, [random_split(PAPER_RUNS, 0)]) for draw in draws]))
        lines.append((name, len(runs.measured), small, error(runs, method, chance), error(runs, method, unseen)))
    lines.append(("the paper: random forest, own runs", PAPER_RUNS, PAPER_RMSLE, None, None))
    return ScoreTable(
        title="Yeung: utilization of GPUMemNet's random networks on an A100, RMSLE on percent",
        columns=("method", "networks", "81 runs, random 80/20", "random 80/20", "unseen architecture type"),
        rows=tuple(lines),
        notes=(
            f"At most {A_TYPE} networks of each of {len(set(runs.kinds))} types; 81 runs: the mean of {DRAWS} draws.",
            f"Both tree methods by grid search with {GRID_FOLDS} folds among the training rows.",
            "The last line is of other models and another GPU. A random split has a type on both sides.",
        ),
    )


def _real_table(runs: Runs) -> ScoreTable:
    count = len(runs.measured)
    chance = [random_split(count, seed) for seed in range(DRAWS)]
    unseen = leave_one_out(runs.kinds, "model")
    lines: list[tuple[str | float | None, ...]] = [
        (
            name,
            error(runs, method, chance),
            error(runs, method, unseen),
            None if method is _constant else _rank(runs, method, unseen),
        )
        for name, method in methods().items()
        if method is not _ours
    ]
    shipped = (error(runs, _shipped, chance), error(runs, _shipped, unseen), _rank(runs, _shipped, unseen))
    lines.append(("ours as shipped, fitted on none of them", *shipped))
    lines.append(("the paper: random forest, own 81 runs", PAPER_RMSLE, None, None))
    return ScoreTable(
        title=f"Yeung: utilization of {count} runs of {len(set(runs.kinds))} real models (Lucid, RTX 3090), RMSLE",
        columns=("method", "random 80/20", "unseen model", "rank correlation, unseen model"),
        rows=tuple(lines),
        notes=(
            f"Random 80/20: {DRAWS} splits. Unseen model: all batch sizes of one model test, the 13 others train.",
            "Lucid's licence is non-commercial: these fits are for this table alone.",
        ),
    )


def _draw(runs: Runs, seed: int) -> Runs:
    return select_runs(runs, np.random.default_rng(seed).permutation(len(runs.measured))[:PAPER_RUNS])


def _rank(runs: Runs, method: Method, folds: Sequence[Fold]) -> float:
    predictions = np.zeros(len(runs.measured))
    for fold in folds:
        predictions[fold.test] = method(runs, fold.train, fold.test)
    return rank_correlation(runs.measured, predictions)


def _constant(runs: Runs, train: IntArray, test: IntArray) -> FloatArray:
    return np.full(len(test), np.expm1(np.log1p(runs.measured[train]).mean()))


def _ours(runs: Runs, train: IntArray, test: IntArray) -> FloatArray:
    parameters = boosting.fit_trees(runs.ours[train], np.log1p(runs.measured[train]))
    return np.clip(np.expm1(boosting.predict(parameters, runs.ours[test])), 0.0, 100.0)


def _shipped(runs: Runs, _: IntArray, test: IntArray) -> FloatArray:
    if runs.shipped is None:
        message = "Runs that the shipped predictor was fitted on cannot test it."
        raise ValueError(message)
    return runs.shipped[test]


def _searched(make: Callable[[], tuple[Any, dict[str, Any]]], features: str) -> Method:
    def method(runs: Runs, train: IntArray, test: IntArray) -> FloatArray:
        rows = getattr(runs, features)
        folds = KFold(GRID_FOLDS, shuffle=True, random_state=0)
        search = GridSearchCV(*make(), cv=folds, scoring="neg_mean_squared_error")
        search.fit(rows[train], np.log1p(runs.measured[train]))
        return np.asarray(np.expm1(search.predict(rows[test])))

    return method


def _forest() -> tuple[Any, dict[str, Any]]:
    return RandomForestRegressor(TREES, random_state=0), FOREST_GRID


def _gradient_boosting() -> tuple[Any, dict[str, Any]]:
    return GradientBoostingRegressor(n_estimators=TREES, random_state=0), BOOSTING_GRID
