"""The target ``memory``: fits the peaks of training, and scores them on families that the fit has not seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gpusage.predictors.arrays import BoolArray, IntArray
from gpusage.predictors.artifacts import Card, MemoryParameters
from gpusage.predictors.memory.liveness import TRAINING_TERMS
from gpusage_lab.learning.artifacts import Artifact
from gpusage_lab.learning.memory_fit import HIGH, SHARE_HIGH, MemoryFit, fit_memory, fit_need
from gpusage_lab.learning.memory_rows import MemoryRows, OwnPeaks, memory_rows, own_peaks
from gpusage_lab.learning.memory_tables import (
    BASELINES,
    HeldOut,
    families_table,
    need_table,
    own_peaks_table,
    peaks_table,
    source_of,
)
from gpusage_lab.learning.scores import score
from gpusage_lab.learning.splits import Fold, by_group, check_enough, random_rows
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.zoo import Zoo, load_zoo

FOLDS = 10
ENDS = 3
"""Rows of `MemoryFit.predicted`."""


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
    low, point, high = held_out.predicted[:, sound]
    need = fit_need(rows)
    figures = score(rows.measured[sound], point, low, high)
    return Artifact(
        name="memory",
        card=Card(
            purpose="Peak bytes of device memory of a training step: a weighted sum of the terms of the walk.",
            fitted_on=(
                source_of(rows),
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
                "need, unseen family, above the high end": need.share_above(HIGH),
                "need, unseen family, above a share's high end": need.share_above(SHARE_HIGH),
            },
            notes=(
                f"What a run needs: {len(need.ratios)} rows of {len(set(need.families))} families.",
                "One GPU (A100 of 40 GB), fp32, momentum; other states and precisions are added by rule.",
            ),
        ),
        parameters=MemoryParameters(
            terms=TRAINING_TERMS,
            weights=fitted.weights.tolist(),
            constant_bytes=fitted.constants.tolist(),
            required_factors=need.factors.tolist(),
            required_constant_bytes=need.constants.tolist(),
        ),
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
    tables = [peaks_table(rows, which, title, [ours, chance, *others]) for title, which in _subsets(rows).items()]
    need = need_table(rows, fit_need(rows), ours)
    return [*tables, need, families_table(rows, ours), *_own_table(rows, own)]


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
    """Return how well peaks of gpusage profile are predicted from the public ones, and from its own other families."""
    if not len(own.measured):
        return []
    predicted = np.full((ENDS, len(own.measured)), np.nan)
    for fold in by_group(own.family, FOLDS, "family"):
        tested = {own.family[index] for index in fold.test}
        train = np.flatnonzero(rows.sound & ~np.isin(_families(rows), list(tested)))
        predicted[:, fold.test] = _fitted(rows, own, train, tested).predicted(own.terms[fold.test])
    return [own_peaks_table(own, predicted)]
