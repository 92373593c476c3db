"""Mixed-integer programs, solved by HiGHS; the only module that needs the extra [plan]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
_INFINITE = highspy.kHighsInf


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One constraint: the sum of *factors* times the variables at *columns* lies between *low* and *high*."""

    columns: Sequence[int]
    factors: Sequence[float]
    high: float
    low: float = -_INFINITE


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Find whole numbers between 0 and *highest* with the least sum of *costs* times them, plus *offset*."""

    costs: FloatArray
    highest: FloatArray
    rows: Sequence[Row]
    offset: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When the solver may stop."""

    gap: float = 0.005
    time_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The whole numbers, and how far their cost may be from the least one, as a share of it."""

    values: npt.NDArray[np.int64]
    gap: float


def solve(program: Program, limits: Limits, start: FloatArray) -> Solution:
    """Return the best solution within *limits*; *start* is one that holds, from which the solver sets out."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]  # it has no annotation
    for name, value in (
        ("output_flag", False),
        ("mip_rel_gap", limits.gap),
        ("time_limit", limits.time_s),
        ("presolve", "off"),
    ):
        solver.setOptionValue(name, value)
    solver.setOptionValue("threads", 1)
    solver.passModel(_model(program))
    warm = highspy.HighsSolution()
    warm.col_value = start.tolist()
    solver.setSolution(warm)
    solver.run()
    values = np.rint(np.asarray(solver.getSolution().col_value)).astype(np.int64)
    if len(values) != len(program.costs):
        values = start.astype(np.int64)
    return Solution(values=values, gap=_gap(program, values, solver.getInfo().mip_dual_bound))


def _gap(program: Program, values: npt.NDArray[np.int64], bound: float) -> float:
    cost = float(program.costs @ values) + program.offset
    return max(cost - bound, 0.0) / max(abs(cost), 1e-12)


def _model(program: Program) -> highspy.HighsLp:
    """Return *program* in the solver's own form, row by row."""
    model = highspy.HighsLp()
    count = len(program.costs)
    model.num_col_, model.num_row_ = count, len(program.rows)
    model.col_cost_, model.offset_ = program.costs, program.offset
    model.col_lower_, model.col_upper_ = np.zeros(count), program.highest
    model.row_lower_ = np.array([row.low for row in program.rows])
    model.row_upper_ = np.array([row.high for row in program.rows])
    model.integrality_ = [highspy.HighsVarType.kInteger] * count
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_ = np.cumsum([0, *(len(row.columns) for row in program.rows)])
    matrix.index_ = np.array([column for row in program.rows for column in row.columns])
    matrix.value_ = np.array([factor for row in program.rows for factor in row.factors], dtype=np.float64)
    return model
