"""Figures as people read them."""

from __future__ import annotations

import pytest

from gpusage.cli import tables
from gpusage_hooks.types import Interval
from gpusage_hooks.units import GIB


def _interval(value: float, low: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high)


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (_interval(12e-6, 9e-6, 15e-6), "12.0 us (9.00-15.0)"),
        (_interval(0.197, 0.170, 0.231), "197 ms (170-231)"),
        (_interval(0.9, 0.8, 1.2), "900 ms (800-1200)"),  # the value chooses the unit, its ends follow
        (_interval(59.0, 50.0, 70.0), "59.0 s (50.0-70.0)"),
        (_interval(1200.0, 900.0, 1500.0), "20.0 min (15.0-25.0)"),
        (_interval(19740.0, 18000.0, 21600.0), "5.48 h (5.00-6.00)"),  # as in "within 5 h 29 min"
        (_interval(72000.0, 36000.0, 90000.0), "20.0 h (10.0-25.0)"),
    ],
)
def test_a_time_stands_in_the_unit_that_suits_its_value(figure: Interval, text: str) -> None:
    assert tables.time_text(figure) == text


def test_memory_is_in_gib_and_shares_are_in_percent() -> None:
    assert tables.memory_text(_interval(6.1 * GIB, 5.6 * GIB, 6.9 * GIB)) == "6.1 GiB (5.6-6.9)"
    assert tables.share_text(_interval(0.31, 0.24, 0.39)) == "31 % (24-39)"


def test_an_exact_figure_has_no_ends() -> None:
    assert tables.interval_text(_interval(1.0, 1.0, 1.0), "x") == "1.00x"
    assert tables.interval_text(_interval(1.08, 0.95, 1.23), "x") == "1.08x (0.95-1.23)"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (999, "999"), (25_557_032, "25.6 M"), (4.1e9, "4.10 G"), (3e15, "3000 T")]
)
def test_a_large_count_has_its_si_letter(value: float, text: str) -> None:
    assert tables.count_text(value) == text


@pytest.mark.parametrize(
    ("time_s", "text"),
    [(0.4, "0 s"), (59.0, "59 s"), (60.0, "1 min"), (3599.0, "1 h 0 min"), (9000.0, "2 h 30 min")],
)
def test_durations_are_read_by_people(time_s: float, text: str) -> None:
    assert tables.duration_text(time_s) == text
    assert tables.seconds_text(28_800) == "8 h 0 min"
    assert tables.seconds_text(0) == "0 s"
