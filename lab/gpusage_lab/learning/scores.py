"""How good predictions are: the few figures that every table shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr  # type: ignore[import-untyped, unused-ignore]

from gpusage.predictors.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Figures of one set of predictions; errors are shares of the measured value.

    Attributes:
        mape: Mean of ``|predicted - measured| / measured``.
        median: Median of the same.
        bias: Mean of ``log(predicted / measured)``: above 0 predictions are too high.
        within_10: Share of the rows that miss by at most 10 %.
        coverage: Share of the rows inside their 90 % interval, ``None`` where there are no intervals.
        width: Median of high / low, ``None`` likewise.
    """

    row_count: int
    mape: float
    median: float
    bias: float
    within_10: float
    coverage: float | None = None
    width: float | None = None


def score(
    measured: FloatArray, predicted: FloatArray, low: FloatArray | None = None, high: FloatArray | None = None
) -> Score:
    """Return the figures of *predicted*, with those of the intervals where *low* and *high* are given.

    Args:
        measured: Above 0.
        predicted: Above 0.
        low: Lower ends of the 90 % intervals.
        high: Upper ends.
    """
    miss = np.abs(predicted - measured) / measured
    return Score(
        row_count=len(measured),
        mape=float(miss.mean()),
        median=float(np.median(miss)),
        bias=float(np.log(predicted / measured).mean()),
        within_10=float((miss <= 0.10).mean()),  # the attribute's name says it
        coverage=None if low is None or high is None else float(((low <= measured) & (measured <= high)).mean()),
        width=None if low is None or high is None else float(np.median(high / low)),
    )


def by_family(values: npt.NDArray[Any], families: npt.NDArray[Any]) -> float:
    """Return the mean of the families' means of *values*, one entry per row: each family counts alike."""
    return float(np.mean([values[families == family].mean() for family in np.unique(families)]))


def rmsle(measured: FloatArray, predicted: FloatArray) -> float:
    """Return the root of the mean squared difference of ``log(1 + x)``; utilization is to be in percent, as in papers.

    Source:
        Yeung et al., "Towards GPU Utilization Prediction for Cloud Deep Learning", HotCloud 2020.
    """
    return float(np.sqrt(np.mean((np.log1p(predicted) - np.log1p(measured)) ** 2)))


def rank_correlation(first: FloatArray, second: FloatArray) -> float:
    """Return Spearman's coefficient; equal values share their rank, and 0 where all of one side are equal."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(spearmanr(first, second).statistic)


def weighted_quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    """Return the least of *values* that so large a *share* of the weight does not exceed."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, share * reached[-1])])
