"""Mixed-integer programs, solved by HiGHS; the only module that needs the extra [plan]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
_INFINITE = highspy.kHighsInf
KIND = {True: highspy.HighsVarType.kInteger, False: highspy.HighsVarType.kContinuous}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One constraint: the sum of *factors* times the variables at *columns* lies between *low* and *high*."""

    columns: Sequence[int] | IntArray
    factors: Sequence[float] | FloatArray
    high: float
    low: float = -_INFINITE


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """The numbers, and how far their cost may be from the least one, as a share of it; ``None`` if nobody knows."""

    values: FloatArray
    gap: float | None


def solve(program: Program, limits: Limits) -> Solution | None:
    """Return the best solution that is found within *limits*, ``None`` where none is.

    HiGHS's presolve is off: for a thousand jobs it takes a hundred times as long as the solution.
    """
    solver = highspy.Highs()  # type: ignore[no-untyped-call]  # it has no annotation
    for name, value in (("output_flag", False), ("mip_rel_gap", limits.gap), ("time_limit", limits.time_s)):
        solver.setOptionValue(name, value)
    solver.setOptionValue("presolve", "off")
    solver.setOptionValue("threads", 1)
    solver.passModel(_model(program))
    solver.run()
    outcome = solver.getInfo()
    values = np.asarray(solver.getSolution().col_value, dtype=np.float64)
    if outcome.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    cost = float(program.costs @ values)
    if not np.isfinite(outcome.mip_dual_bound):
        return Solution(values=values, gap=None)
    return Solution(values=values, gap=max(cost - outcome.mip_dual_bound, 0.0) / max(abs(cost), 1e-12))


def _model(program: Program) -> highspy.HighsLp:
    """Return *program* in the solver's own form, row by row."""
    model = highspy.HighsLp()
    count = len(program.costs)
    model.num_col_, model.num_row_ = count, len(program.rows)
    model.col_cost_ = program.costs
    model.col_lower_, model.col_upper_ = np.zeros(count), program.highest
    model.row_lower_ = np.array([row.low for row in program.rows])
    model.row_upper_ = np.array([row.high for row in program.rows])
    model.integrality_ = [KIND[is_whole] for is_whole in program.whole.tolist()]
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_ = np.cumsum([0, *(len(row.columns) for row in program.rows)])
    matrix.index_ = np.concatenate([np.asarray(row.columns, dtype=np.int64) for row in program.rows])
    matrix.value_ = np.concatenate([np.asarray(row.factors, dtype=np.float64) for row in program.rows])
    return model
