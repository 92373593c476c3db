"""Packing: by utilization, and by what a set does together."""

from __future__ import annotations

import pytest

from gpusage_planning.simulator.predictions import LEAST_ADDED, Load, added, fits

ROOM = 10.0
"""Of memory."""


def load(utilization: float, memory_bytes: float = 1) -> Load:
    return Load(utilization=utilization, memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        pytest.param([load(0.6), load(0.4)], True, id="just busy"),
        pytest.param([load(0.6), load(0.41)], False, id="too busy"),
        pytest.param([load(0.1, 6), load(0.1, 5)], False, id="too much memory"),
        pytest.param([load(0.1)] * 4, False, id="a fourth job"),
        pytest.param([load(1.7)], True, id="one alone has all of the time"),
    ],
)
def test_jobs_fit_by_utilization_memory_and_number(loads: list[Load], *, expected: bool) -> None:
    assert fits(loads, ROOM) is expected


def test_a_job_joins_a_set_to_whose_throughput_it_adds_enough() -> None:
    assert added([1.0], [0.9, 0.8], 1.25) == pytest.approx(0.7)
    assert added([1.0], [1 / 1.25, (1 + LEAST_ADDED) - 0.81], 2) is None


def test_a_job_joins_no_set_in_which_one_becomes_too_slow() -> None:
    assert added([1.0], [0.79, 1.0], 1.25) is None
    assert added([], [1.0], 1.0) == 1.0
