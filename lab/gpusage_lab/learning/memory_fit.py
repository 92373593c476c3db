"""What a run takes of memory, and what it needs: weighted sums with no negative weight, fitted to the relative error.

A sum of terms that grow with the batch, none with a negative weight, grows with the batch as well.

**Need.** cuDNN takes scratch memory for convolutions as far as it finds room. So the need is fitted on rows in which
that hardly counts: of models whose convolutions write less than `FEW_CONVOLUTIONS` of all that is written, and of those
whose tensors take half of the GPU. Even their peaks have what the allocator keeps beyond need, so they bound the need
from above. Its high end is a quantile in which each family counts alike, as the next job's family is a new one. Its
last end is above every row that a fit without its family predicts: with more than 1,000 rows, by the conformal
argument, fewer than 1 of 1,000 jobs of unseen families need more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls  # type: ignore[import-untyped, unused-ignore]

from gpusage.predictors.arrays import BoolArray, FloatArray
from gpusage.predictors.memory.liveness import TRAINING_TERMS
from gpusage.predictors.memory.peak import FITTED_CONTEXT_BYTES
from gpusage_hooks.units import GIB
from gpusage_lab.learning.memory_rows import MemoryRows
from gpusage_lab.learning.scores import weighted_quantile
from gpusage_lab.learning.splits import by_group

LOW_SHARE = 0.07
"""Of the rows lie below the low end: with the one in a hundred above the high end, the interval holds nine in ten."""
HIGH_SHARE = 0.985
"""Of the training rows lie below the high end."""
CALIBRATED_SHARE = 0.9925
"""Of the rows that no fold has seen lie below the high end after calibration."""
HIGH_TERMS = tuple(map(TRAINING_TERMS.index, ("weights", "pointwise", "spatial", "batched", "grouped")))
"""What the high end adds to the point: the largest operations, whose scratch memory cuDNN's search for the fastest
algorithm makes as large as it finds room for."""
ROUNDS = 60
SMALLEST_MISS = 0.002
"""Misses below this share are as good as none; keeps the weights of the least squares finite."""
INNER_FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """Weights of `TRAINING_TERMS` and constants in bytes; rows are low end, point and high end."""

    weights: FloatArray
    constants: FloatArray

    def predicted(self, terms: FloatArray) -> FloatArray:
        """Return low ends, points and high ends, one column per row of *terms*."""
        sums: FloatArray = self.weights @ terms.T + self.constants[:, None]
        low, point, high = sums
        return np.stack([np.minimum(low, point), point, np.maximum(high, point)])


def fit_memory(terms: FloatArray, measured: FloatArray, families: npt.NDArray[np.str_]) -> MemoryFit:
    """Return the fit on all rows, its high end calibrated on families that an inner fit has not seen.

    Args:
        terms: One row per measurement, bytes.
        measured: Bytes.
        families: One per row.
    """
    point, low = quantile_fit(_with_one(terms), measured, 0.5), quantile_fit(_with_one(terms), measured, LOW_SHARE)
    high = _high(terms, measured, point, HIGH_SHARE)
    rows = np.stack([low, point, np.r_[high[0], high[1:] * _calibration(terms, measured, families)]])
    return MemoryFit(weights=rows[:, 1:], constants=rows[:, 0])


def quantile_fit(columns: FloatArray, measured: FloatArray, share: float) -> FloatArray:
    """Return the weights of a quantile regression of relative distances, none negative: *share* of the rows lie below.

    The absolute distances are minimised by iteratively reweighted least squares, each round of them non-negative.
    """
    scale = 1.0 / np.maximum(columns.max(axis=0), 1e-9)
    scaled = columns * scale / measured[:, None]
    importance = np.ones(len(measured))
    weights = np.zeros(columns.shape[1])
    for _ in range(ROUNDS):
        weights, _ = nnls(scaled * importance[:, None], importance, maxiter=100 * len(weights))
        miss = 1.0 - scaled @ weights
        side = np.where(miss > 0, share, 1.0 - share)
        importance = np.sqrt(side / np.maximum(np.abs(miss), SMALLEST_MISS))
    result: FloatArray = weights * scale
    return result


def _with_one(terms: FloatArray) -> FloatArray:
    return np.concatenate([np.ones((len(terms), 1)), terms], axis=1)


def _high(terms: FloatArray, measured: FloatArray, point: FloatArray, below: float) -> FloatArray:
    """Return constant and weights of a high end: those of the point's tensors, and some of `HIGH_TERMS`.

    Args:
        terms: One row per measurement.
        measured: Bytes.
        point: Constant and weights of the point.
        below: The share of the rows that lie below.
    """
    tensors = terms @ point[1:]
    columns = np.column_stack([np.ones(len(terms)), tensors, terms[:, HIGH_TERMS]])
    constant, share, *added = quantile_fit(columns, measured, below)
    weights: FloatArray = share * point
    weights[0] = max(constant, point[0])
    for term, weight in zip(HIGH_TERMS, added, strict=True):
        weights[1 + term] += weight
    return weights


def _calibration(terms: FloatArray, measured: FloatArray, families: npt.NDArray[np.str_]) -> float:
    """Return by how much the tensors of the high end must grow for families that the fit has not seen."""
    ratios = np.ones(len(measured))
    for fold in by_group(families.tolist(), INNER_FOLDS, "family"):
        train, test = fold.train, fold.test
        point = quantile_fit(_with_one(terms[train]), measured[train], 0.5)
        high = _high(terms[train], measured[train], point, HIGH_SHARE)
        ratios[test] = (measured[test] - high[0]) / np.maximum(terms[test] @ high[1:], 1.0)
    return max(1.0, float(np.quantile(ratios, CALIBRATED_SHARE)))


FEW_CONVOLUTIONS = 0.03
HALF_OF_THE_GPU = 18.5 * GIB
"""Of tensors, on 40 GB less the context."""
NEED_LOW, NEED_HIGH = 0.05, 0.95
FAILING = 0.001
ROUNDING = 1e-9
NEED_FOLDS = 10
FEWEST_FAMILIES = 2
POINT, HIGH, SHARE_HIGH = 1, 2, 3
"""Places of the ends; the low end is the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedFit:
    """What a run needs: *constants* and *factors* of its tensors, for low end, point, high end and a share's high end.

    Attributes:
        ratios: Of each training row, measured over the point of a fit without its family.
        families: Of each row.
    """

    constants: FloatArray
    factors: FloatArray
    ratios: FloatArray
    families: tuple[str, ...]

    def end(self, place: int) -> float:
        """Return an end as a multiple of the point."""
        return float(self.factors[place] / self.factors[POINT])

    def share_above(self, place: int) -> float:
        """Return the share of the rows that lie above an end, each predicted without its family."""
        return float((self.ratios > self.end(place) * (1 + ROUNDING)).mean())


def fit_need(rows: MemoryRows) -> NeedFit:
    """Return the fit on the rows that had no choice, its ends on families that the fit has not seen."""
    which = np.flatnonzero(had_no_choice(rows))
    if len({rows.family[index] for index in which}) < FEWEST_FAMILIES:
        which = np.flatnonzero(rows.sound)  # bounds the need from above all the same
    columns = np.column_stack([np.ones(len(which)), tensors_of(rows)[which]])
    measured, families = rows.measured[which] - FITTED_CONTEXT_BYTES, np.array(rows.family)[which]
    point = quantile_fit(columns, measured, 0.5)
    ratios = _ratios(columns, measured, families)
    farthest = float(np.quantile(ratios, 1 - FAILING, method="higher"))
    _, family, sizes = np.unique(families, return_inverse=True, return_counts=True)
    high = weighted_quantile(ratios, 1.0 / sizes[family], NEED_HIGH)
    ends = np.array([np.quantile(ratios, NEED_LOW), 1.0, high, farthest])
    return NeedFit(constants=point[0] * ends, factors=point[1] * ends, ratios=ratios, families=tuple(families.tolist()))


def tensors_of(rows: MemoryRows) -> FloatArray:
    """Return the most that each row's walk says must be there at once: in the backward pass, or in the update."""
    peak, weights, inputs = (rows.terms[:, TRAINING_TERMS.index(name)] for name in ("peak", "weights", "inputs"))
    most: FloatArray = np.maximum(peak + 2 * weights, 4 * weights + inputs)
    return most


def had_no_choice(rows: MemoryRows) -> BoolArray:
    """Return which sound rows could take hardly more than they needed."""
    written, stored = (rows.terms[:, TRAINING_TERMS.index(name)] for name in ("written_convolutions", "stored"))
    few: BoolArray = written < FEW_CONVOLUTIONS * stored
    which: BoolArray = rows.sound & (few | (tensors_of(rows) > HALF_OF_THE_GPU))
    return which


def _ratios(columns: FloatArray, measured: FloatArray, families: npt.NDArray[np.str_]) -> FloatArray:
    """Return measured over predicted, each row by a fit that has not seen its family."""
    ratios = np.ones(len(measured))
    for fold in by_group(families.tolist(), NEED_FOLDS, "family"):
        fitted = quantile_fit(columns[fold.train], measured[fold.train], 0.5)
        ratios[fold.test] = measured[fold.test] / (columns[fold.test] @ fitted)
    return ratios
