"""KACE (Han et al., SoCC 2024): which partner beside a target gives the highest sum of throughputs, by four learners.

KACE adds up or averages what nvidia-smi and Nsight Compute saw of each workload alone; here both jobs are known by what
gpusage predicts from their graphs. Its 21 workloads on a V100 are not public: Gavel's V100 pairs under MPS and Lucid's
time-sliced pairs stand in.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
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

from gpusage_lab.learning.colocation import as_shipped, refit_sums, sums_by_pairs
from gpusage_lab.learning.pairs import RANKING, Pairs, Policy, gavel, lucid, mean_sums, scores
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder

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


BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.intp]
PAIR_COUNTS, DRAWS = (5, 10, 20, 40), 20
FILES = ("gavel_pairs.csv",)
ABSOLUTE, PERCENT = (0, 4, 5), (1, 2, 3)
"""Columns of the features that are logarithms of amounts (step, samples per second, bytes), and shares."""
PAPER_ORACLE, PAPER_BEST, PAPER_TARGETS = 90.0, 13, 21
TIE = 1e-9


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return the experiment's tables; Lucid's where its file is there."""
    pairs = gavel(data)
    policies: dict[str, Policy] = {**rules(), "popular partner": mean_sums, **learners(), "ours": refit_sums}
    scores = {name: policy_scores(pairs, policy, "workload") for name, policy in policies.items()}
    unseen = {name: policy_scores(pairs, policy, "model") for name, policy in policies.items()}
    shown = [_table("Gavel 2020, V100, MPS", pairs, scores, unseen)]
    if "lucid_pairs.csv" in data:
        others = lucid(data)
        policies["ours"] = as_shipped
        named = {name: policy_scores(others, policy, "model") for name, policy in policies.items()}
        shown.append(_table("Lucid, RTX 3090, time slicing; ours was never fitted on it", others, None, named))
        shown.append(own_pairs("Lucid, RTX 3090, time slicing", others))
    return [*shown, own_pairs("Gavel 2020, V100, MPS", pairs)]


def own_pairs(title: str, pairs: Pairs) -> ScoreTable:
    """Return how well partners are chosen by some pairs of a site's own jobs, drawn by chance, beside the rule alone.

    The pairs that were drawn are no candidates. In the last column no pair of the target's model was drawn.
    """
    first, second = np.nonzero(np.triu(~np.isnan(pairs.sums)))
    rule = sums_by_pairs(pairs, np.zeros(pairs.sums.shape, dtype=bool))
    lines: list[tuple[str | float | None, ...]] = []
    for count in PAIR_COUNTS:
        reached = []
        for seed in range(DRAWS):
            order = np.random.default_rng(seed).permutation(len(first))
            drawn = _chosen(pairs, first[order[:count]], second[order[:count]])
            rest = replace(pairs, sums=np.where(drawn, np.nan, pairs.sums))
            known, by_rule = (scores(rest, _as_predicted(sums)) for sums in (sums_by_pairs(pairs, drawn), rule))

            unseen = np.array(rule)
            for model in sorted(set(pairs.models)):
                own = pairs.models == model
                others = order[~(own[first[order]] | own[second[order]])][:count]
                unseen[own] = sums_by_pairs(pairs, _chosen(pairs, first[others], second[others]))[own]
            new = scores(pairs, _as_predicted(unseen))
            reached.append((by_rule["queue"], known["queue"], by_rule["error"], known["error"], new["queue"]))
        figures = np.array(reached)
        worse = str((figures[:, 1] < figures[:, 0]).sum())
        lines.append((str(count), *figures[:, :2].mean(axis=0).tolist(), worse, *figures[:, 2:].mean(axis=0).tolist()))

    return ScoreTable(
        title=f"A site's own pairs: {title}, % of Oracle in queues of four",
        columns=("pairs", "rule alone", "with the pairs", "worse", "MAPE %, rule", "MAPE %, pairs", "new model"),
        rows=tuple(lines),
        notes=(f"Means of {DRAWS} draws; worse: draws in which the rule was better.",),
    )


def _chosen(pairs: Pairs, first: IntArray, second: IntArray) -> BoolArray:
    mask = np.zeros(pairs.sums.shape, dtype=bool)
    mask[first, second] = mask[second, first] = True
    return mask


def _as_predicted(sums: FloatArray) -> Policy:
    return lambda _, __, target: sums[target]


def rules() -> dict[str, Policy]:
    """Return KACE's rules of one figure."""
    return {name: policy for name, policy in RANKING.items() if name != "random"}


def learners() -> Mapping[str, Policy]:
    """Return KACE's four: each learns sums of throughputs from the aggregated features of the training pairs."""
    return {name: _learned(partial(fitted, make)) for name, make in MODELS.items()}


def aggregate_features(features: FloatArray, first: Any, second: Any) -> FloatArray:  # indices, one or many
    """Return KACE's features of pairs: sums of amounts, means of shares; the sums as logarithms."""
    amounts = np.exp(features[:, ABSOLUTE])
    shares = features[:, PERCENT]
    sums = np.log(amounts[first] + amounts[second])
    return np.concatenate([sums, (shares[first] + shares[second]) / 2], axis=-1)


def policy_scores(pairs: Pairs, policy: Policy, held_out: str) -> FloatArray:
    """Return each target's % of Oracle, NaN where it has fewer than two candidates.

    Args:
        pairs: What was measured.
        policy: Says how good each job would be as the target's partner.
        held_out: ``workload``: the target's own pairs are held out; ``model``: those of its other batch sizes, too.
    """
    predictions = _predictions(pairs, policy, held_out)
    result = np.full(len(pairs.jobs), np.nan)
    for target, truth in enumerate(pairs.sums):
        candidates = np.flatnonzero(~np.isnan(truth))
        if len(candidates) > 1:
            chosen = candidates[predictions[target][candidates].argmax()]
            result[target] = 100.0 * truth[chosen] / truth[candidates].max()
    return result


def _predictions(pairs: Pairs, policy: Policy, held_out: str) -> list[FloatArray]:
    def train_mask(target: int) -> BoolArray:
        if held_out == "model":
            return np.asarray(pairs.models != pairs.models[target])
        return np.asarray(np.arange(len(pairs.jobs)) != target)

    return [policy(pairs, train_mask(target), target) for target in range(len(pairs.jobs))]


def by_chance(pairs: Pairs) -> FloatArray:
    """Return each target's mean sum over all its candidates, as % of Oracle: KACE's 'Random'."""
    return np.array([100.0 * float(np.nanmean(row) / np.nanmax(row)) for row in pairs.sums])


def best_rule(scores: Mapping[str, FloatArray]) -> FloatArray:
    """Return the best of the three rules' choices for each target, which nobody knows beforehand."""
    return np.asarray(np.max([scores[name] for name in rules()], axis=0))


def _table(
    title: str, pairs: Pairs, known: Mapping[str, FloatArray] | None, unseen: Mapping[str, FloatArray]
) -> ScoreTable:
    everyone = _with_baselines(pairs, unseen)
    by_workload = _with_baselines(pairs, known) if known is not None else None
    best = np.max([everyone[name] for name in unseen], axis=0)
    lines: list[tuple[str | float | None, ...]] = []
    for name, reached in everyone.items():
        workload = float(np.nanmean(by_workload[name])) if by_workload is not None else None
        wins = str((reached >= best - TIE).sum()) if name in unseen else None
        lines.append((name, workload, float(np.nanmean(reached)), float(np.nanmin(reached)), wins))
    lines.append(("the paper: KACE, linear regression", PAPER_ORACLE, None, None, str(PAPER_BEST)))
    measured = int((~np.isnan(pairs.sums)).sum() / 2)
    return ScoreTable(
        title=f"KACE: % of Oracle, {title}",
        columns=("policy", "target's pairs held out", "target's model held out", "worst target", "best for so many"),
        rows=tuple(lines),
        notes=(
            f"{len(pairs.jobs)} targets, {measured} pairs. The last two columns: model held out; ties count for each.",
            f"The paper: {PAPER_TARGETS} targets of its own, known from profiles; here all is predicted from graphs.",
        ),
    )


def _with_baselines(pairs: Pairs, scores: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    return {"random (mean of all)": by_chance(pairs), "best of the three rules": best_rule(scores), **scores}


def _learned(fit: Callable[[FloatArray, FloatArray], Any]) -> Policy:
    known: dict[bytes, Any] = {}

    def policy(pairs: Pairs, train_mask: BoolArray, target: int) -> FloatArray:
        key = train_mask.tobytes() + pairs.sums.tobytes()
        if key not in known:
            first, second = np.nonzero(np.triu(~np.isnan(pairs.sums) & train_mask[:, np.newaxis] & train_mask))
            rows = aggregate_features(pairs.features, first, second)
            known[key] = fit(rows, pairs.sums[first, second])
        partners = np.arange(len(pairs.jobs))
        features = aggregate_features(pairs.features, np.full_like(partners, target), partners)
        return np.asarray(known[key].predict(features), dtype=np.float64)

    return policy
