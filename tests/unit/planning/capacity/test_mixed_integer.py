"""Programs that a solver must survive."""

from __future__ import annotations

import numpy as np
import pytest

from gpusage_planning.capacity.mixed_integer import Limits, Program, Row, solve


@pytest.mark.parametrize("tiny", [1e-310, 1e-320, 1e-20])
def test_a_cost_near_zero_counts_as_none(tiny: float) -> None:
    """HiGHS crashed or never ended on costs of 1e-310, which a price per hour in a cluster file may be."""
    program = Program(
        costs=np.array([tiny, 2.0, 3.0]),
        highest=np.array([1.0, 1.0, 1.0]),
        whole=np.array([True, True, True]),
        rows=[Row(columns=[0, 1], factors=[1.0, 1.0], low=1.0, high=2.0), Row(columns=[2], factors=[1.0], high=1.0)],
    )
    solution = solve(program, Limits())
    assert solution is not None
    assert solution[0] == 1.0
    assert solution[1] == solution[2] == 0.0


def test_costs_of_denormal_numbers_alone_are_solved() -> None:
    program = Program(
        costs=np.array([1e-310, 2e-310]),
        highest=np.array([1.0, 1.0]),
        whole=np.array([True, False]),
        rows=[Row(columns=[0, 1], factors=[1.0, 1.0], low=1.0, high=2.0)],
    )
    assert solve(program, Limits()) is not None
