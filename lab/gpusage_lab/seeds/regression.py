"""Linear regression with inverse and crossed terms, chosen step by step as Draper and Smith do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import f as f_distribution  # type: ignore[import-untyped, unused-ignore]

FloatArray = npt.NDArray[np.float64]
ENTER, REMOVE = 0.05, 0.10
"""Chance of an F value as large for a term of no worth: below the first it enters, above the second it leaves."""
LEAST_SHARE = 0.05
"""Of the smallest time that was learned from: a line that goes below it says nothing."""


class Line(NamedTuple):
    """The terms that were chosen, their weights, the constant first, and the lowest prediction."""

    terms: tuple[int, ...]
    weights: FloatArray
    least: float


def augmented(features: FloatArray) -> FloatArray:
    """Return *features*, their inverses, and the products of any two that are not of one feature."""
    count = features.shape[1]
    terms = np.concatenate([features, 1.0 / features], axis=1)
    crossed = [terms[:, a] * terms[:, b] for a, b in combinations(range(2 * count), 2) if b - a != count]
    return np.concatenate([terms, *(column[:, np.newaxis] for column in crossed)], axis=1)


def fitted(terms: FloatArray, target: FloatArray) -> Line:
    """Return the line that stepwise selection chooses; with too few rows it is the mean."""
    chosen: list[int] = []
    useful = [column for column in range(terms.shape[1]) if np.ptp(terms[:, column]) > 0]
    for _ in range(2 * len(useful)):
        entering = _best_to_enter(terms, target, chosen, useful)
        if entering is None:
            break
        chosen.append(entering)
        leaving = _worst_to_leave(terms, target, chosen)
        if leaving == entering:
            chosen.remove(leaving)
            break
        if leaving is not None:
            chosen.remove(leaving)
    weights, _ = _solved(terms, target, chosen)
    return Line(tuple(chosen), weights, LEAST_SHARE * float(target.min()))


def predicted(line: Line, terms: FloatArray) -> FloatArray:
    """Return what the line says."""
    return np.maximum(_design(terms, line.terms) @ line.weights, line.least)


def _design(terms: FloatArray, chosen: Sequence[int]) -> FloatArray:
    return np.concatenate([np.ones((len(terms), 1)), terms[:, list(chosen)]], axis=1)


def _solved(terms: FloatArray, target: FloatArray, chosen: Sequence[int]) -> tuple[FloatArray, float]:
    """Return weights and the sum of the squared residuals; columns are scaled, as they differ by many powers of ten."""
    design = _design(terms, chosen)
    scale = np.maximum(np.abs(design).max(axis=0), 1e-300)
    weights = np.linalg.lstsq(design / scale, target, rcond=None)[0] / scale
    return weights, float(((design @ weights - target) ** 2).sum())


def _chance(smaller: float, larger: float, freedom: int) -> float:
    """Return how likely a term of no worth would lower the residuals from *larger* to *smaller* or further."""
    if freedom <= 0:
        return 1.0
    return float(f_distribution.sf((larger - smaller) / max(smaller / freedom, 1e-300), 1, freedom))


def _best_to_enter(terms: FloatArray, target: FloatArray, chosen: list[int], useful: list[int]) -> int | None:
    free = [term for term in useful if term not in chosen]
    freedom = len(target) - len(chosen) - 2
    if not free or freedom <= 0:
        return None
    before = _solved(terms, target, chosen)[1]
    after, best = min((_solved(terms, target, [*chosen, term])[1], term) for term in free)
    return best if _chance(after, before, freedom) < ENTER else None


def _worst_to_leave(terms: FloatArray, target: FloatArray, chosen: list[int]) -> int | None:
    freedom = len(target) - len(chosen) - 1
    now = _solved(terms, target, chosen)[1]
    losses = [
        (_chance(now, _solved(terms, target, [t for t in chosen if t != term])[1], freedom), term) for term in chosen
    ]
    chance, worst = max(losses)
    return worst if chance > REMOVE else None
