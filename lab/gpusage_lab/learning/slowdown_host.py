"""When a kernel fills a GPU, and what is expected of a host.

The first serves the families best, each counted alike; the second the worst of the sources.
"""

from __future__ import annotations

from itertools import product
from math import hypot
from types import MappingProxyType

import numpy as np

from gpusage.predictors.arrays import IntArray
from gpusage.predictors.artifacts import pretrained
from gpusage.predictors.sharing.host import HostUncertainty, gpu_time_shares
from gpusage.predictors.sharing.slowdown import points
from gpusage_lab.learning.slowdown_rows import MISO, PARVAGPU, RAPP, SlowdownColumns

GOALS = MappingProxyType({RAPP: 0.15, PARVAGPU: 0.12, MISO: 0.12})
"""The mean error that is wanted of each source with the step time known."""
LAUNCHES_S = (40e-6, 50e-6, 60e-6, 70e-6, 80e-6, 100e-6, 120e-6)
HOSTS = (0.3, 0.4, 0.5, 0.6, 0.8, 1.0)


def fitted_filling(columns: SlowdownColumns, train: IntArray) -> float | None:
    """Return the blocks per SM with the least mean error; ``None`` where everything is in proportion.

    Each family of each source counts alike, and each number of blocks with the host that suits it best: RaPP's largest
    families would decide otherwise, or MISO's two models.
    """
    weighed = [columns.with_step_time_weight(host).by_step_time[train] for host in _hosts()]
    families = np.array([f"{row.source} {row.family}" for row in columns.rows])[train]
    members = [families == family for family in np.unique(families)]

    def error(blocks: float) -> float:
        growth, measured = columns.growth_by_filling[blocks][train], columns.measured[train]
        errors = np.abs(np.array([points(working, growth) for working in weighed]) / measured - 1.0)
        return float(np.mean([errors[:, of_it].mean(axis=1) for of_it in members], axis=0).min())

    return min(columns.growth_by_filling, key=error, default=None)


def fitted_host(columns: SlowdownColumns, train: IntArray) -> HostUncertainty:
    """Return what makes the worst error of a source, against its goal, the smallest on the rows *train*."""
    return min(_hosts(), key=lambda doubt: _worst(columns, train, doubt))


def _hosts() -> list[HostUncertainty]:
    own = own_deviation()
    return [HostUncertainty(launch_s=launch_s, host=host, own=own) for launch_s, host in product(LAUNCHES_S, HOSTS)]


def own_deviation() -> float:
    """Return the standard deviation of the GPU's own time: how far 90 % of unseen steps lie, for tails are long."""
    deviations = pretrained().step_time.deviations
    return hypot(deviations.known, deviations.unseen_gpu)


def _worst(columns: SlowdownColumns, train: IntArray, doubt: HostUncertainty) -> float:
    working = gpu_time_shares(columns.busy_s[train], columns.alone_s[train], columns.kernel_count[train], doubt)
    errors = np.abs(points(working, columns.growth[train]) / columns.measured[train] - 1.0)
    sources = columns.source[train]
    return max(float(errors[sources == source].mean()) / GOALS[source] for source in np.unique(sources))
