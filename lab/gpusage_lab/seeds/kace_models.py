"""KACE's four models, as scikit-learn has them; imported only where scikit-learn is installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import (  # type: ignore[import-untyped, unused-ignore]
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped, unused-ignore]
from sklearn.linear_model import LinearRegression, Ridge  # type: ignore[import-untyped, unused-ignore]
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV  # type: ignore[import-untyped, unused-ignore]
from sklearn.neighbors import KNeighborsRegressor  # type: ignore[import-untyped, unused-ignore]
from sklearn.neural_network import MLPRegressor  # type: ignore[import-untyped, unused-ignore]
from sklearn.pipeline import Pipeline  # type: ignore[import-untyped, unused-ignore]
from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped, unused-ignore]
from sklearn.svm import SVR  # type: ignore[import-untyped, unused-ignore]

FloatArray = npt.NDArray[np.float64]
SEARCHES, FOLDS, TREES = 6, 3, 40


def fitted(make: Callable[[], Any], rows: FloatArray, target: FloatArray) -> Any:  # scikit-learn has no types
    """Return what *make* makes, fitted on *rows* of shape ``(pairs, features)`` and their *target*."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the network stops after its steps, as is meant
        return make().fit(rows, target)


def _forest() -> Any:
    return GridSearchCV(RandomForestRegressor(TREES, random_state=0), {"max_depth": [4, None]}, cv=FOLDS)


def _network() -> Any:
    return _scaled(MLPRegressor(hidden_layer_sizes=(16,), solver="lbfgs", alpha=1.0, max_iter=300, random_state=0))


def _search() -> Any:
    """Return a search by chance over kinds of models and their settings."""
    candidates = [
        *(Ridge(alpha) for alpha in (0.1, 1.0, 10.0)),
        *(KNeighborsRegressor(count, weights="distance") for count in (3, 7)),
        *(SVR(C=weight) for weight in (0.3, 3.0)),
        *(HistGradientBoostingRegressor(max_iter=60, max_leaf_nodes=leaves, random_state=0) for leaves in (4, 8)),
        RandomForestRegressor(TREES, random_state=0),
    ]
    model = _scaled(Ridge())
    return RandomizedSearchCV(model, {"model": candidates}, n_iter=SEARCHES, cv=FOLDS, random_state=0)


def _scaled(model: Any) -> Any:
    return Pipeline([("scale", StandardScaler()), ("model", model)])


MODELS: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        "KACE: linear regression": LinearRegression,
        "KACE: random forest, grid search": _forest,
        "KACE: neural network": _network,
        "KACE: AutoML-like search": _search,
    }
)
