"""Max-min fair shares of the GPUs: water filling over users, and over the jobs of each user.

The level of all rises alike. Who has as much as they can use stays there, and the others rise on. With GPU types that
differ in speed, what rises is a user's throughput, and each step is a linear program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpusage_hooks.errors import RequestError
from gpusage_planning.simulator.jobs import FloatArray, IntArray

LEAST_PRICE = 1e-9
"""Below it, a price is 0 but for rounding."""
TOLERANCE = 1e-6
"""Part of a level that a solution may miss; HiGHS keeps constraints to 1e-7."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Claims:
    """Groups of alike jobs that want GPUs; each array has one entry, or row, per group.

    Attributes:
        users: Whose jobs they are.
        jobs: How many jobs each has, at least 1.
        alike: For how many users each user's groups stand: each of them has the same; nothing means one.
        gpus: The GPUs that one of the jobs can use at a time, above 0.
        speeds: Of one of the jobs, for each GPU type; 0 where it must not run. Some type of each group is above 0.
    """

    users: IntArray
    jobs: IntArray
    gpus: FloatArray
    speeds: FloatArray
    alike: IntArray | None = None


def fill(capacity: FloatArray, owners: IntArray, most: FloatArray, counts: IntArray) -> FloatArray:
    """Return what each claim gets of its owner's *capacity*: all the same, but nobody more than its part of *most*.

    An owner's water rises as high as it would with only the smallest claims satisfied, however many these are.

    Args:
        capacity: Of each owner, each with some claim.
        owners: Of each kind of claims, the index into *capacity*.
        most: What one claim can use.
        counts: How many claims of the kind there are.
    """
    order = np.lexsort((most, owners))
    sizes = np.bincount(owners)
    starts = np.cumsum(sizes) - sizes
    each, wants = counts[order].astype(float), (counts * most)[order]
    passed, spent = np.cumsum(each) - each, np.cumsum(wants) - wants
    rest = np.repeat(np.add.reduceat(each, starts), sizes) - (passed - np.repeat(passed[starts], sizes))
    unspent = np.repeat(capacity, sizes) - (spent - np.repeat(spent[starts], sizes))
    levels = np.maximum.reduceat(unspent / rest, starts)
    shares: FloatArray = np.minimum(most, levels[owners])
    return shares


def even_shares(claims: Claims, gpu_count: int) -> FloatArray:
    """Return the part of the time that each group's jobs run, where a GPU counts as any other.

    The GPUs are divided among the users, and each user's among the jobs.
    """
    owners = np.unique(claims.users, return_inverse=True)[1].astype(np.int32)
    wants = np.bincount(owners, weights=claims.jobs * claims.gpus).astype(float)
    together = np.zeros(len(wants), dtype=np.int32)
    gpus = fill(np.array([float(gpu_count)]), together, wants, np.ones_like(together))
    parts: FloatArray = fill(gpus, owners, claims.gpus, claims.jobs) / claims.gpus
    return parts


def throughput_shares(claims: Claims, gpu_counts: Sequence[int]) -> FloatArray:
    """Return the part of the time that each group's jobs run on each GPU type, so that throughputs are max-min fair.

    A job's throughput counts in multiples of what it is on an even part of each type that it may use, times its GPUs;
    in Gavel every job may use all. As there, a user's weight is divided among those of its jobs that can rise.

    Raises:
        RequestError: SciPy is not installed.

    Source:
        Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads", OSDI 2020,
        section 4.3; in its repository, scheduler/policies/max_min_fairness_water_filling.py.
    """
    counts = np.asarray(gpu_counts, dtype=float)
    alike = np.ones_like(claims.jobs) if claims.alike is None else claims.alike
    most = alike * claims.jobs * claims.gpus
    program = _Program(claims.speeds, most, counts)
    level, is_rising = np.zeros(len(claims.users)), np.ones(len(claims.users), dtype=bool)
    gpus = np.zeros_like(claims.speeds)
    while is_rising.any():
        rising_jobs = np.bincount(claims.users, weights=claims.jobs * is_rising)[claims.users]
        weights = np.where(is_rising, alike * claims.jobs / np.maximum(rising_jobs, 1), 0.0)
        step = program.rise(level, weights)
        if step is None:  # the solver misses by rounding what it reached before
            break
        gpus, rise, prices = step
        level += rise * weights
        is_bound = is_rising & (prices > LEAST_PRICE)
        is_rising &= ~(is_bound if is_bound.any() else is_rising)
    parts: FloatArray = np.clip(gpus / most[:, None], 0.0, 1.0)
    return parts


class _Program:
    """How far the levels of all groups can rise at once: a linear program of the GPUs that each has of each type."""

    def __init__(self, speeds: FloatArray, most: FloatArray, counts: FloatArray) -> None:
        groups, types = speeds.shape
        of_even_part = speeds @ counts / ((speeds > 0) @ counts)
        gains = speeds / of_even_part[:, None]
        self._shape = gains.shape
        self._rows = np.zeros((2 * groups + types, groups * types + 1))
        for group in range(groups):
            columns = slice(group * types, (group + 1) * types)
            self._rows[group, columns] = -gains[group]
            self._rows[groups + group, columns] = 1.0
            self._rows[2 * groups :, columns] = np.eye(types)
        self._limits = np.concatenate([np.zeros(groups), most, counts])
        self._costs = np.append(np.zeros(groups * types), -1.0)
        highest = np.append(np.where(gains > 0, most[:, None], 0.0).ravel(), np.inf)
        self._bounds = np.column_stack([np.zeros(len(highest)), highest])

    def rise(self, level: FloatArray, weights: FloatArray) -> tuple[FloatArray, float, FloatArray] | None:
        """Return the GPUs by group and type that raise *level* by most times *weights*, and how many times that is.

        Also return what each group's level costs the others: above 0, it cannot rise further.
        """
        try:
            from scipy.optimize import linprog  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            message = "Library scipy must be there for max-min-speeds; got: not installed. Install the extra [plan]."
            raise RequestError(message) from error
        groups = len(level)
        self._rows[:groups, -1], self._limits[:groups] = weights, -level * (1 - TOLERANCE)
        outcome = linprog(self._costs, A_ub=self._rows, b_ub=self._limits, bounds=self._bounds, method="highs")
        if outcome.x is None:
            return None
        return outcome.x[:-1].reshape(self._shape), float(outcome.x[-1]), -outcome.ineqlin.marginals[:groups]
