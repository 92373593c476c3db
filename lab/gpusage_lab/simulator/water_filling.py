"""Max-min fair shares of the GPUs: water filling over users, and over the jobs of each user.

The level of all rises alike. Who has as much as they can use stays there, and the others rise on. With GPU types that
differ in speed, what rises is a user's throughput, and each step is a linear program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpusage_hooks.errors import RequestError
from gpusage_lab.simulator.jobs import FloatArray, IntArray

LEAST = 1e-9
"""Below it, a number is 0 but for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Claims:
    """Groups of alike jobs that want GPUs; each array has one entry, or row, per group.

    Attributes:
        users: Whose jobs they are.
        jobs: How many jobs each has, at least 1.
        gpus: The GPUs that one of the jobs can use at a time, above 0.
        speeds: Of one of the jobs, for each GPU type; 0 where it must not run. Some type of each group is above 0.
    """

    users: IntArray
    jobs: IntArray
    gpus: FloatArray
    speeds: FloatArray


def fill(capacity: float, most: Sequence[float] | FloatArray) -> FloatArray:
    """Return how *capacity* is divided among claims: all have the same, but nobody more than its part of *most*."""
    most = np.asarray(most, dtype=float)
    shares = np.zeros(len(most))
    rest, order = capacity, np.argsort(most, kind="stable")
    for place, index in enumerate(order):
        shares[index] = min(most[index], rest / (len(most) - place))
        rest -= shares[index]
    return shares


def even_shares(claims: Claims, gpu_count: int) -> FloatArray:
    """Return the part of the time that each group's jobs run, where a GPU counts as any other.

    The GPUs are divided among the users, and each user's among the jobs.
    """
    parts = np.zeros(len(claims.users))
    users = np.unique(claims.users)
    wants = claims.jobs * claims.gpus
    for user, gpus in zip(users, fill(gpu_count, [wants[claims.users == user].sum() for user in users]), strict=True):
        own = np.flatnonzero(claims.users == user)
        each = np.repeat(own, claims.jobs[own])
        parts[each] = fill(gpus, claims.gpus[each]) / claims.gpus[each]
    return parts


def throughput_shares(claims: Claims, gpu_counts: Sequence[int]) -> FloatArray:
    """Return the part of the time that each group's jobs run on each GPU type, so that throughputs are max-min fair.

    A job's throughput counts in multiples of what it is on an even part of each type, times its GPUs. As in Gavel, a
    user's weight is divided among those of its jobs that can rise.

    Raises:
        RequestError: SciPy is not installed.

    Source:
        Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads", OSDI 2020,
        section 4.3; in its repository, scheduler/policies/max_min_fairness_water_filling.py.
    """
    counts = np.asarray(gpu_counts, dtype=float)
    usual = claims.speeds @ counts / counts.sum()
    gains = claims.speeds / usual[:, None]
    level, is_rising = np.zeros(len(claims.users)), np.ones(len(claims.users), dtype=bool)
    gpus = np.zeros_like(gains)
    while is_rising.any():
        rising_jobs = np.bincount(claims.users, weights=claims.jobs * is_rising)[claims.users]
        weights = np.where(is_rising, claims.jobs / np.maximum(rising_jobs, 1), 0.0)
        gpus, rise, prices = _raise(claims, gains, counts, level, weights)
        level += rise * weights
        is_bound = is_rising & (prices > LEAST)
        is_rising &= ~(is_bound if is_bound.any() else is_rising)
    parts: FloatArray = np.clip(gpus / (claims.jobs * claims.gpus)[:, None], 0.0, 1.0)
    return parts


def _raise(
    claims: Claims, gains: FloatArray, counts: FloatArray, level: FloatArray, weights: FloatArray
) -> tuple[FloatArray, float, FloatArray]:
    """Return GPUs by group and type that raise *level* by *weights* times the most that is possible, and that number.

    Also return what each group's constraint costs: above 0, it cannot rise further.
    """
    try:
        from scipy.optimize import linprog  # type: ignore[import-untyped, unused-ignore]
        from scipy.sparse import csr_array, hstack, vstack  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        message = "Library scipy must be there for max-min fairness by speeds; got: not installed. Install [plan]."
        raise RequestError(message) from error
    groups, types = gains.shape
    own = np.arange(groups * types)
    rows = np.repeat(np.arange(groups), types)
    rises = csr_array((-gains.ravel(), (rows, own)), shape=(groups, groups * types))
    uses = csr_array((np.ones(groups * types), (rows, own)), shape=(groups, groups * types))
    holds = csr_array((np.ones(groups * types), (np.tile(np.arange(types), groups), own)))
    matrix = vstack([rises, uses, holds])
    last = csr_array(np.concatenate([weights, np.zeros(groups + types)])[:, None])
    highest = np.where(gains > 0, (claims.jobs * claims.gpus)[:, None], 0.0).ravel()
    outcome = linprog(
        np.append(np.zeros(groups * types), -1.0),
        A_ub=hstack([matrix, last]),
        b_ub=np.concatenate([-level, claims.jobs * claims.gpus, counts]),
        bounds=[*((0.0, high) for high in highest), (0.0, None)],
        method="highs",
    )
    if outcome.x is None:  # the level that was reached is infeasible by rounding
        return np.zeros_like(gains), 0.0, np.ones(groups)
    return outcome.x[:-1].reshape(gains.shape), float(outcome.x[-1]), -outcome.ineqlin.marginals[:groups]
