"""What ours is held against: a constant, and random forests on what Yeung and others put in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestRegressor  # type: ignore[import-untyped, unused-ignore]

from gpusage.devices.precisions import HALF
from gpusage.predictors.times.step_time import timing_with
from gpusage.predictors.work.operators import OperatorClass
from gpusage_lab.learning.splits import Fold, by_group
from gpusage_lab.learning.step_fit import initial
from gpusage_lab.learning.step_flat import Array, Sample
from gpusage_lab.learning.step_samples import Measurements

FOLDS = 10
TREES = 100


def _forest() -> Any:  # scikit-learn has no types

    return RandomForestRegressor(TREES, min_samples_leaf=2, n_jobs=1, random_state=0)


def graph_features(measured: Measurements, indices: Array) -> Array:
    """Return logarithms of FLOP, traffic, launches, batch, and each class's share of the traffic, a row each."""
    rows = []
    for index in indices:
        kernels = measured.samples[index].kernels
        traffic = kernels.counts * kernels.traffic_bytes
        shares = np.bincount(kernels.operator_class, traffic, len(OperatorClass)) / traffic.sum()
        flop = float(kernels.counts @ kernels.flop)
        sizes = np.log([flop, traffic.sum(), kernels.counts.sum(), measured.rows[index].workload.batch_size])
        rows.append(np.concatenate([sizes, shares]))
    return np.array(rows)


def throughput_forest(measurements: Measurements, folds: Sequence[Fold]) -> Array:
    """Return seconds by a random forest on the graph's sums and the GPU's figures, each row when its family is unseen.

    It learns the logarithm of the time over the ideal time at the GPU's peaks, or it could not separate one GPU's rows
    from another's.
    """
    gpus = [row.gpu for row in measurements.rows]
    ideal = np.array([_ideal_s(measurements, index) for index in range(len(measurements.rows))])
    figures = np.log([[g.peak_flop_per_s["fp32"], g.bandwidth_bytes_per_s, g.sm_count, g.l2_bytes] for g in gpus])
    modes = np.array([[row.workload.mode == "train", row.workload.precision in HALF] for row in measurements.rows])
    features = np.hstack(
        [graph_features(measurements, np.arange(len(measurements.rows))), figures, modes, np.log(ideal)[:, None]]
    )
    target = np.log(measurements.measured_s / ideal)
    result = np.zeros(len(ideal))
    for fold in folds:
        result[fold.test] = _forest().fit(features[fold.train], target[fold.train]).predict(features[fold.test])
    seconds: Array = np.exp(result) * ideal
    return seconds


def _ideal_s(measurements: Measurements, index: int) -> float:
    kernels, gpu = measurements.samples[index].kernels, measurements.samples[index].gpu
    compute = float(kernels.counts @ kernels.flop) / max(gpu.peak_flop_per_s.values())
    return compute + float(kernels.counts @ kernels.traffic_bytes) / gpu.bandwidth_bytes_per_s


def ratio_forest(
    measurements: Measurements, matched: Array, measured: Array, ours: Array, groups: Sequence[str]
) -> tuple[Array, Array, Array]:
    """Return what a random forest and a constant say of a speed-up, and the factor that ours misses by elsewhere.

    All three learn from the other families' rows of the same pair.
    """
    features = graph_features(measurements, matched[:, 0])
    forest, constant, offset = (np.zeros(len(measured)) for _ in range(3))
    for fold in by_group(groups, FOLDS, "family"):
        train, test = fold.train, fold.test
        forest[test] = np.exp(_forest().fit(features[train], np.log(measured[train])).predict(features[test]))
        constant[test] = np.median(measured[train])
        offset[test] = np.exp(np.median(np.log(measured[train] / ours[train])))
    return forest, constant, offset


def constant_roofline(samples: Sequence[Sample]) -> Array:
    """Return the seconds at one efficiency a class, of GPUs that no power limit holds back."""
    efficiency = initial()
    gpus = {sample.gpu.name: replace(sample.gpu, power_limit_w=inf) for sample in samples}
    return np.array(
        [float(timing_with(efficiency, one.kernels, [gpus[one.gpu.name]], one.precision).step_s[0]) for one in samples]
    )
