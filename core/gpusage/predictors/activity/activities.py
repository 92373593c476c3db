"""How busy a workload keeps a GPU: trees fitted on measured networks predict it from the node times.

No measurements of the memory's activity may be learned from. It is the share of the step that the traffic would take at
the memory's peak. Intervals are narrow near the networks that the trees learned from, and wide far from them. Those
networks sometimes wait for their data. A job that never waits keeps the GPU as busy as its node times say, so the
utilization's interval reaches up to there. Far from those networks a training job is taken to be no busier than a host
lets it that takes as long for each kernel as hosts do (`gpusage.predictors.times.host`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gpusage.predictors.activity.features import NAMES, Work, features_of
from gpusage.predictors.learned.arrays import FloatArray, shaped
from gpusage.predictors.learned.artifacts import ActivityParameters, RegionParameters
from gpusage.predictors.learned.intervals import NINETY_PERCENT, unknown_deviation
from gpusage.predictors.learned.trees import Trees, read_trees
from gpusage.predictors.times.timing import Timing
from gpusage_hooks.types import Interval, ModelGraph

DRAM_DEVIATION = 0.50
"""Of the logarithm of the odds; a judgement, as nothing was fitted."""
NEARLY_BUSY = 0.75
"""A job with at least this utilization may be one that never waits for its host."""
LEAST_SHARE = 1e-4
GREATEST_SHARE = 0.985
"""Even a GPU that is never without work idles between kernels, and while the last blocks of each finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """How busy a workload keeps one GPU, alone on it; shares of 0 to 1."""

    gpu_utilization: Interval
    sm_activity: Interval
    dram_activity: Interval


class Regions(NamedTuple):
    """Where each kind of network lies among the features, and how far predictions miss there; one entry per kind.

    Attributes:
        means: Shape (kinds, features).
        precisions: Shape (kinds, features, features).
        reaches: The squared distance within which 99 % of them lie.
        deviations: Of utilization and SM activity: of the logarithm of the odds, truth over prediction.
    """

    means: FloatArray
    precisions: FloatArray
    reaches: FloatArray
    deviations: FloatArray


class LearnedActivity(NamedTuple):
    """What the artifact holds.

    Attributes:
        shares: Two forests: utilization, SM activity.
        far: The deviations of a kind of network that was not learned from.
    """

    shares: Trees
    regions: Regions
    far: FloatArray


def activities(
    parameters: ActivityParameters, graph: ModelGraph, work: Work, timing: Timing, fed: FloatArray | None = None
) -> list[Activity]:
    """Return how busy a workload keeps each GPU when alone.

    Args:
        parameters: What was learned.
        graph: The model.
        work: Of the workload.
        timing: Of the workload, one entry per GPU.
        fed: The most that a host's launches allow of each GPU, 0 to 1; None where that is not judged.
    """
    learned = _learned(parameters)
    rows = features_of(work, timing)
    values, deviations = np.empty((len(rows), 3)), np.full((len(rows), 3), DRAM_DEVIATION)
    values[:, :_FIGURES] = shares(learned.shares, rows)
    values[:, _FIGURES] = timing.dram_s / timing.step_s
    deviations[:, :_FIGURES] = deviations_of(learned.regions, learned.far, rows)
    intervals = shares_around(values, np.exp(NINETY_PERCENT * np.hypot(deviations, unknown_deviation(graph))))
    never_waiting = np.minimum(timing.busy_s / timing.step_s, 1.0).tolist()
    parts = _held_up(learned.regions, rows, values[:, 0], fed)
    return [
        Activity(
            gpu_utilization=_lowered(_up_to(busy, ceiling), part), sm_activity=_lowered(sm, part), dram_activity=dram
        )
        for (busy, sm, dram), ceiling, part in zip(intervals, never_waiting, parts, strict=True)
    ]


def _held_up(regions: Regions, rows: FloatArray, busy: FloatArray, fed: FloatArray | None) -> list[float]:
    """Return what part of its learned utilization a host leaves each row: all of it near the networks learned from."""
    if fed is None:
        return [1.0] * len(rows)
    parts: list[float] = (np.minimum(fed / np.maximum(busy, LEAST_SHARE), 1.0) ** far_share(regions, rows)).tolist()
    return parts


def _lowered(share: Interval, part: float) -> Interval:
    """Return *share* with its point and low end lowered; a faster host leaves the GPU as busy as before."""
    return Interval(value=share.value * part, low=share.low * part, high=share.high) if part < 1 else share


def _up_to(share: Interval, ceiling: float) -> Interval:
    if share.value < NEARLY_BUSY or ceiling <= share.high:
        return share
    return Interval(value=share.value, low=share.low, high=ceiling)


def shares_around(values: FloatArray, factors: FloatArray) -> list[list[Interval]]:
    """Return intervals around shares: the odds of each may be *factors* times as large or as small.

    On the odds, value / (1 - value), an interval can reach neither below 0 nor above 1.

    Args:
        values: Of any two dimensions, as are the factors and the result.
        factors: At least 1.
    """
    values = np.maximum(np.minimum(values, GREATEST_SHARE), LEAST_SHARE)
    lows = values / (values + (1.0 - values) * factors)
    highs = values * factors / (values * factors + 1.0 - values)
    return [
        [Interval(value=value, low=low, high=high) for value, low, high in zip(*row, strict=True)]
        for row in zip(values.tolist(), lows.tolist(), highs.tolist(), strict=True)
    ]


def deviations_of(regions: Regions, far: FloatArray, rows: FloatArray) -> FloatArray:
    """Return a row's deviations: those of the nearest region, growing to *far* at twice its reach."""
    near = regions.deviations[_distances(regions, rows).argmin(axis=0)]
    deviations: FloatArray = near + far_share(regions, rows)[:, np.newaxis] * np.maximum(far - near, 0.0)
    return deviations


def far_share(regions: Regions, rows: FloatArray) -> FloatArray:
    """Return 0 for a row within the reach of a region, 1 at twice its reach and beyond."""
    nearest: FloatArray = _distances(regions, rows).min(axis=0)
    return np.maximum(np.minimum(nearest - 1.0, 1.0), 0.0)


def _distances(regions: Regions, rows: FloatArray) -> FloatArray:
    """Return Mahalanobis' squared distance of each row over each region's reach, shape (regions, rows)."""
    away = rows - regions.means[:, np.newaxis]
    distances: FloatArray = (np.matmul(away, regions.precisions) * away).sum(axis=2) / regions.reaches[:, np.newaxis]
    return distances


def shares(trees: Trees, rows: FloatArray) -> FloatArray:
    """Return utilization and SM activity of each row, 0 to 1; SMs cannot be busier than the GPU.

    Args:
        trees: What they say is the logarithm of 1 + percent.
        rows: As `features_of` returns them.
    """
    parts = np.maximum(np.minimum(np.expm1(trees.predict(rows)) / 100.0, 1.0), 0.0)
    parts[:, 1] = np.minimum(parts[:, 0], parts[:, 1])
    return parts


@lru_cache(maxsize=4)
def _learned(parameters: ActivityParameters) -> LearnedActivity:
    return LearnedActivity(
        shares=read_trees(parameters.gpu_utilization, parameters.sm_activity),
        regions=regions_of(parameters.regions),
        far=shaped("far", parameters.far, _FIGURES),
    )


def regions_of(parameters: Sequence[RegionParameters]) -> Regions:
    """Return the regions that an artifact's *parameters* describe, one entry per kind of network."""
    kinds, features = len(parameters), len(NAMES)
    return Regions(
        means=shaped("mean", [kind.mean for kind in parameters], kinds, features),
        precisions=shaped("precision", [kind.precision for kind in parameters], kinds, features, features),
        reaches=shaped("reach", [kind.reach for kind in parameters], kinds),
        deviations=shaped("deviations", [kind.deviations for kind in parameters], kinds, _FIGURES),
    )


_FIGURES = 2
"""Utilization and SM activity."""
