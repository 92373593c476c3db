"""Fits the correction of `gpusage.predictors.times.efficiency` to what whole steps took beyond the fitted roofline.

It is a sparse Gaussian process with anchors for inducing points, one for each GPU on which many models were measured.
Each model has a random intercept (a mixed-effects model), so that each GPU's part is learned from what GPUs differ in.
Iteratively reweighted least squares make large misses count less. Nothing here is drawn at random.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpusage.predictors.times.efficiency import KERNEL_COUNT, NO_RESIDUAL, Residual, rbf_kernel, standardize
from gpusage_lab.learning.step_flat import Array

ANCHORS = 150
LEAST_ROWS = 500
"""A GPU with so many measured steps has a part of its own."""
OWN = 0.08
"""Standard deviation of the logarithm that a GPU's part explains before any row is seen."""
MODEL = 0.2
ROW = 0.04
"""The same of what the rows of one model share, and of a row."""
FAR = 2.5
"""Misses beyond so many standard deviations of a row count by their size, not their squares."""
ROUNDS = 4
SMALLEST_SCALE = 1e-3
RIDGE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualRows:
    """Rows to learn from.

    Attributes:
        features: As `residual.features_of` gives them.
        misses: Logarithms of measured over the roofline's seconds.
        gpus: Names.
        models: What rows of one model and workload have in common.
        families: A family counts by the root of its size.
    """

    features: Array
    misses: Array
    gpus: Sequence[str]
    models: Sequence[str]
    families: Sequence[str]


def fit_residual(rows: ResidualRows) -> Residual:
    """Return the correction that explains *rows* best; none where no GPU has rows enough for a part of its own."""
    own = own_parts(rows.gpus)
    if not own:
        return NO_RESIDUAL
    means, scales = rows.features.mean(axis=0), rows.features.std(axis=0) + SMALLEST_SCALE
    near = standardize(rows.features, means, scales)
    anchors = _anchors(near, min(ANCHORS, len(near)))
    gram = rbf_kernel(anchors, anchors) + RIDGE * np.eye(len(anchors))
    whitener = np.linalg.inv(np.linalg.cholesky(gram)).T
    weights = _reweighted_least_squares(_design(rbf_kernel(near, anchors) @ whitener, rows.gpus, own), rows)
    coefficients = [np.append(whitener @ part[:-1], part[-1]) for part in weights.reshape(len(own), -1)]
    return Residual(
        means=means,
        scales=scales,
        anchors=anchors,
        by_gpu={name: part * OWN for name, part in zip(own, coefficients, strict=True)},
        least_count=float(rows.features[:, KERNEL_COUNT].min()),
    )


def own_parts(gpus: Iterable[str]) -> list[str]:
    """Return those of *gpus*, one entry per measured step, on which so many were that they have a part of their own."""
    return sorted(name for name, count in Counter(gpus).items() if count >= LEAST_ROWS)


def _anchors(near: Array, count: int) -> Array:
    """Return *count* rows, each as far as can be from those before it."""
    chosen = [int(np.argmax(np.square(near - near.mean(axis=0)).sum(axis=1)))]
    distances = np.square(near - near[chosen[0]]).sum(axis=1)
    while len(chosen) < count:
        chosen.append(int(np.argmax(distances)))
        distances = np.minimum(distances, np.square(near - near[chosen[-1]]).sum(axis=1))
    return near[chosen]


def _design(columns: Array, gpus: Sequence[str], own: Sequence[str]) -> Array:
    """Return each GPU's own columns, scaled so that each weight has a deviation of 1."""
    block = np.hstack([columns, np.ones((len(columns), 1))])
    names = np.array(gpus)
    return np.hstack([block * OWN * (names == name)[:, np.newaxis] for name in own])


def _reweighted_least_squares(design: Array, rows: ResidualRows) -> Array:
    """Return the weights of a ridge regression with a random intercept for each model, robust to large misses.

    The intercepts are projected out by partial centering (generalised least squares of a random-intercept model): of
    each column, a share of its model's mean is subtracted. Large misses are weighed down anew in each round
    (iteratively reweighted least squares with the weights of the pseudo-Huber loss).
    """
    sizes = Counter(rows.families)
    first = np.array([sizes[name] ** -0.5 for name in rows.families])
    first /= first.mean()
    model = np.unique(np.array(rows.models), return_inverse=True)[1]

    weight, solution = first, np.zeros(design.shape[1])
    for _ in range(ROUNDS):
        totals = np.bincount(model, weight)
        # The share of a model's mean that its random intercept explains, as in Swamy and Arora's transformation.
        share = 1.0 - 1.0 / np.sqrt(1.0 + totals * MODEL**2 / ROW**2)
        left = _centered_columns(design, model, weight, share)
        right = _centered_columns(rows.misses[:, np.newaxis], model, weight, share)[:, 0]

        precision = left.T @ left / ROW**2 + np.eye(design.shape[1])
        solution = np.linalg.solve(precision, left.T @ right / ROW**2)

        missed = rows.misses - design @ solution
        shared = np.bincount(model, weight * missed) / totals * share * (2.0 - share)
        weight = first / np.sqrt(1.0 + np.square((missed - shared[model]) / (FAR * ROW)))
    return solution


def _centered_columns(columns: Array, model: Array, weight: Array, share: Array) -> Array:
    """Return *columns* less a share of their model's mean, times the root of the weight."""
    order = np.argsort(model, kind="stable")
    starts = np.searchsorted(model[order], np.arange(len(share)))
    sums = np.add.reduceat((columns * weight[:, np.newaxis])[order], starts, axis=0)
    means = sums / np.bincount(model, weight)[:, np.newaxis] * share[:, np.newaxis]
    result: Array = (columns - means[model]) * np.sqrt(weight)[:, np.newaxis]
    return result
