"""Measured activity that may be learned from: GPUMemNet's random networks, and runs of gpusage profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.times.activity import features_of
from gpusage_hooks.types import Gpu, ModelGraph, Workload
from gpusage_lab.learning import activity_real, random_networks
from gpusage_lab.learning.profiled import ProfiledRun, profiled
from gpusage_lab.measurements.tables import DataFolder

GPU = "a100-sxm4-40gb"
"""GPUMemNet's machine has an A100 of 40 GB."""
UTILIZATION, SM = 0, 1
"""Columns of what is measured."""


class Rows(NamedTuple):
    """What is learned from: features, Yeung's features, the node times alone, the measured percents, the groups.

    Attributes:
        steps: Seconds in which kernels run, seconds of the step, and the kernels after which the host leaves gaps.
    """

    features: FloatArray
    yeung: FloatArray
    roofline: FloatArray
    steps: FloatArray
    measured: FloatArray
    kinds: tuple[str, ...]
    architectures: tuple[str, ...]
    left_out: dict[str, int]


def rows_of(data: DataFolder) -> Rows:
    """Return all rows with their features."""
    loaded = random_networks.load(data)
    features, yeung, roofline, steps = [], [], [], []
    cases = [*random_cases(loaded), *_own(data)]
    for case in cases:
        analysis = WorkloadAnalysis(case.graph, case.workload)
        timing = analysis.timing([case.gpu])
        features.append(features_of(analysis.work, timing)[0])
        roofline.append(100.0 * np.array([timing.busy_s[0], timing.sm_s[0]]) / timing.step_s[0])
        gaps = float(analysis.kernels.counts.sum()) if case.workload.mode == "train" else 0.0
        steps.append((timing.busy_s[0], timing.step_s[0], gaps))
        yeung.append(activity_real.yeung_features(case.graph, case.workload.batch_size))
    return Rows(
        np.array(features),
        np.array(yeung),
        np.array(roofline),
        np.array(steps),
        np.array([case.measured for case in cases]),
        tuple(case.kind for case in cases),
        tuple(f"{case.kind} {case.architecture}" for case in cases),
        loaded.left_out,
    )


def random_count(rows: Rows) -> int:
    """Return how many rows are of GPUMemNet's random networks."""
    return sum(kind != "real" for kind in rows.kinds)


def own_sources(data: DataFolder) -> Counter[str]:
    """Return how many rows are of each campaign of gpusage profile."""
    return Counter(run.source for run in profiled(data).runs if _has_activity(run))


def _has_activity(run: ProfiledRun) -> bool:
    return run.is_alone and {"gpu_utilization", "sm_activity"} <= run.figures.keys()


class Case(NamedTuple):
    """One measured run; percents of utilization and SM activity."""

    kind: str
    architecture: str
    graph: ModelGraph
    workload: Workload
    gpu: Gpu
    measured: tuple[float, float]


def random_cases(loaded: random_networks.Loaded) -> Iterator[Case]:
    """Yield the runs of GPUMemNet's random networks."""
    gpu = builtin_catalogue().find(GPU)
    for network in loaded.networks:
        workload = Workload(batch_size=network.batch_size, optimizer="adam")
        measured = (network.gpu_utilization, network.sm_activity)
        yield Case(network.kind, network.architecture, network.graph, workload, gpu, measured)


def _own(data: DataFolder) -> Iterator[Case]:
    """Yield the runs of gpusage profile; a family of models is what a type of architecture is elsewhere."""
    for run in profiled(data).runs:
        if _has_activity(run):
            measured = (100.0 * run.figures["gpu_utilization"], 100.0 * run.figures["sm_activity"])
            yield Case("real", run.family, run.graph, run.workload, run.gpu, measured)
