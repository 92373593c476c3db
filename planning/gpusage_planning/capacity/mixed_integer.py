"""Mixed-integer programs, solved by SciPy's HiGHS; the only module that needs the extra [plan]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped, unused-ignore]
from scipy.sparse import csr_array  # type: ignore[import-untyped, unused-ignore]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# A cost below this part of the largest is none: no plan is worth it, and HiGHS 1.12 (SciPy 1.17) writes past its
# memory or never ends on costs of 1e-310.
LEAST_COST_SHARE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One constraint: the sum of *factors* times the variables at *columns* lies between *low* and *high*."""

    columns: Sequence[int] | IntArray
    factors: Sequence[float] | FloatArray
    high: float
    low: float = -np.inf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """Find numbers between 0 and *highest* with the least sum of *costs* times them; those that are *whole* are so."""

    costs: FloatArray
    highest: FloatArray
    whole: npt.NDArray[np.bool_]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When the solver may stop."""

    gap: float = 0.005
    time_s: float = 5.0


def solve(program: Program, limits: Limits) -> FloatArray | None:
    """Return the best numbers that is found within *limits*, ``None`` where there are none.

    HiGHS's presolve is off: for a thousand jobs it takes a hundred times as long as the solution.
    """
    outcome = milp(
        _without_tiny(program.costs),
        integrality=program.whole,
        bounds=Bounds(0.0, program.highest),
        constraints=_constraint(program.rows, len(program.costs)),
        options={"mip_rel_gap": limits.gap, "time_limit": limits.time_s, "presolve": False},
    )
    return None if outcome.x is None else np.asarray(outcome.x, dtype=np.float64)


def _without_tiny(costs: FloatArray) -> FloatArray:
    """Return *costs* with 0 for those that are too small to count."""
    sizes = np.abs(costs)
    return np.where(sizes < max(LEAST_COST_SHARE * sizes.max(initial=0.0), np.finfo(np.float64).tiny), 0.0, costs)


def _constraint(rows: Sequence[Row], count: int) -> LinearConstraint:
    """Return *rows* over *count* variables as one sparse matrix between two ends."""
    factors = np.concatenate([np.asarray(row.factors, dtype=np.float64) for row in rows])
    columns = np.concatenate([np.asarray(row.columns, dtype=np.int32) for row in rows])
    starts = np.cumsum([0, *(len(row.columns) for row in rows)], dtype=np.int32)  # SciPy 1.11 takes no wider ones
    matrix = csr_array((factors, columns, starts), shape=(len(rows), count))
    return LinearConstraint(matrix, [row.low for row in rows], [row.high for row in rows])
