"""Gradient boosting, fitted by scikit-learn and turned into the flat arrays of `gpusage.predictors.times.activity`."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.ensemble import (  # type: ignore[import-untyped, unused-ignore]
    HistGradientBoostingRegressor,
)

from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.artifacts import ForestParameters
from gpusage.predictors.times.activity import MAXIMUM_LEAVES, read_trees

MAXIMUM_DEPTH = 6


def fit_trees(rows: FloatArray, target: FloatArray, *, trees: int = 100) -> ForestParameters:
    """Return the parameters of *trees* trees that predict *target* from *rows*; the same rows give the same trees."""
    model = HistGradientBoostingRegressor(
        max_iter=trees,
        learning_rate=0.1,
        max_leaf_nodes=MAXIMUM_LEAVES,
        max_depth=MAXIMUM_DEPTH,
        min_samples_leaf=20,
        l2_regularization=2.0,
        early_stopping=False,
        random_state=0,
    ).fit(rows, target)
    stages = [stage[0].nodes for stage in model._predictors]  # noqa: SLF001 - scikit-learn names no public way to its trees
    return _flat(stages, float(model._baseline_prediction.ravel()[0]))  # noqa: SLF001 - as above


def predict(parameters: ForestParameters, rows: FloatArray) -> FloatArray:
    """Return what the trees say, by the very code that predicts."""
    return np.asarray(read_trees(parameters).predict(rows))


def _flat(trees: list[Any], start: float) -> ForestParameters:
    roots: list[int] = []
    left: list[int] = []
    right: list[int] = []
    feature: list[int] = []
    threshold: list[float] = []
    value: list[float] = []
    for nodes in trees:
        first = len(value)
        roots.append(first)
        for index, node in enumerate(nodes):
            is_leaf = bool(node["is_leaf"])
            feature.append(0 if is_leaf else int(node["feature_idx"]))
            threshold.append(0.0 if is_leaf else float(node["num_threshold"]))
            left.append(first + (index if is_leaf else int(node["left"])))
            right.append(first + (index if is_leaf else int(node["right"])))
            value.append(float(node["value"]) if is_leaf else 0.0)
    return ForestParameters(
        roots=roots, left=left, right=right, feature=feature, threshold=threshold, value=value, start=start
    )
