"""What the host of one measured campaign adds to each step: fitted on some of the campaign's runs, for the others.

A step lasts as long as its kernels and the host's launches, which overlap, and what comes after one another: the
host's own work for each step and, for each sample, finding it and copying what it has. The GPU counts as busy while
kernels run and while data is copied to it. No such host is shipped: whose job it is decides it, not the model
(docs/decisions/predictors.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares  # type: ignore[import-untyped, unused-ignore]

from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.times.activity import GREATEST_SHARE
from gpusage_hooks.types import Gpu
from gpusage_lab.learning.splits import leave_one_out

NOISE = 0.2
"""Of the logarithm of a measured percent, beside what the account explains."""


class Host(NamedTuple):
    """Seconds that a host and its copies take.

    Attributes:
        launch_s: Of the host, for each kernel.
        kernel_s: For each kernel as well, while the GPU counts as busy.
        step_s: Of the host, for each step.
        sample_s: Of the host, for each sample.
        element_s: Of the host, for each number that is read.
        copied_s: For each such number as well, while the GPU counts as busy.
    """

    launch_s: float
    kernel_s: float
    step_s: float
    sample_s: float
    element_s: float
    copied_s: float


USUAL = Host(launch_s=40e-6, kernel_s=2e-6, step_s=50e-6, sample_s=0.5e-6, element_s=0.2e-9, copied_s=0.1e-9)
"""What an unknown host is taken for."""
DOUBT = Host(launch_s=1.0, kernel_s=1.5, step_s=2.5, sample_s=2.5, element_s=2.5, copied_s=2.5)
"""Standard deviations of the logarithms of `USUAL`."""
_FARTHEST = 12.0


class Loads(NamedTuple):
    """What each run asks of its host in one step, one entry per run: the kernels' seconds, and three counts."""

    busy_s: FloatArray
    launches: FloatArray
    samples: FloatArray
    elements: FloatArray

    def of(self, rows: npt.NDArray[np.int64]) -> Loads:
        """Return those of *rows*."""
        return Loads(*(column[rows] for column in self))


def load_of(analysis: WorkloadAnalysis, gpu: Gpu) -> tuple[float, float, float, float]:
    """Return the columns of `Loads` of one run."""
    elements = float(np.exp(analysis.work.log_inputs))
    launches = float(analysis.kernels.host_counts[1:].sum())
    return float(analysis.timing([gpu]).busy_s[0]), launches, float(analysis.workload.batch_size), elements


def percents(host: Host, loads: Loads) -> FloatArray:
    """Return the GPU utilization of each run."""
    busy_s = loads.busy_s + host.kernel_s * loads.launches + host.copied_s * loads.elements
    data_s = host.sample_s * loads.samples + host.element_s * loads.elements
    step_s = np.hypot(busy_s, host.launch_s * loads.launches) + host.step_s + data_s
    return np.asarray(100.0 * np.minimum(busy_s / step_s, GREATEST_SHARE))


def fit_host(loads: Loads, measured: FloatArray) -> Host:
    """Return the host whose runs were busy for *measured* percent of the time; `USUAL` where there are none."""
    usual, doubt = np.log(USUAL), np.array(DOUBT)

    def residuals(logs: FloatArray) -> FloatArray:
        missed = np.log1p(measured) - np.log1p(percents(Host(*np.exp(logs)), loads))
        return np.concatenate([missed / NOISE, (logs - usual) / doubt])

    fitted: Any = least_squares(residuals, usual, bounds=(usual - _FARTHEST, usual + _FARTHEST))
    return Host(*np.exp(fitted.x).tolist())


def held_out(loads: Loads, measured: FloatArray, families: Sequence[str]) -> FloatArray:
    """Return the GPU utilization of each run by the host that the other *families* of its campaign show."""
    predicted = np.zeros_like(measured)
    for fold in leave_one_out(families, "family"):
        predicted[fold.test] = percents(fit_host(loads.of(fold.train), measured[fold.train]), loads.of(fold.test))
    return predicted
