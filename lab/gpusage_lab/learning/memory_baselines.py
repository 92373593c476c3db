"""What the memory predictor is compared with: published estimates, formulas of two constants, gradient boosting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-untyped, unused-ignore]

from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.memory.liveness import TRAINING_TERMS
from gpusage_hooks.units import MIB
from gpusage_lab.learning.memory_rows import MemoryRows
from gpusage_lab.learning.splits import Fold

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
