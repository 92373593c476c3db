"""The page of `gpusage evaluate -o`: where its dots stand, and what its axes say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpusage_lab.learning import report
from gpusage_lab.learning.targets import Points, ScoreTable


def drawn(measured: tuple[float, ...], predicted: tuple[float, ...]) -> str:
    """The page of one plot."""
    points = Points(title="plot", unit="s", measured=measured, predicted=predicted)
    table = ScoreTable(title="t", columns=("rows of",), rows=(), notes=("One & two,", "three."), points=(points,))
    return report.page({"step_time": [table]})


def dots(page: str) -> list[tuple[float, float]]:
    """Where they stand, from the left and from above."""
    return [(float(x), float(y)) for x, y in re.findall(r"<circle cx='([\d.]+)' cy='([\d.]+)'", page)]


def numbers(page: str) -> list[str]:
    """What the axis to the right says."""
    return re.findall(r"text-anchor='middle'>([\d.e+-]+)</text>", page)


def test_values_that_lie_close_fill_the_plot_and_its_axes_name_round_values() -> None:
    page = drawn((1.0, 2.0), (1.0, 2.0))
    # The axis goes from 1 / 1.1 to 2 x 1.1: ln 1.1 = 0.0953 of ln 2.42 = 0.8838, of 328 between margins of 46.
    left = 46 + 328 * 0.0953 / 0.8838
    assert dots(page) == [pytest.approx((left, 420 - left), abs=0.1), pytest.approx((420 - left, left), abs=0.1)]
    assert numbers(page) == ["1", "2"]


def test_one_value_alone_stands_in_the_middle() -> None:
    assert dots(drawn((3.0,), (3.0,))) == [(210.0, 210.0)]


def test_values_far_apart_have_an_axis_of_powers_of_ten_and_what_was_not_positive_stands_at_its_end() -> None:
    page = drawn((0.001, 10.0, 0.0), (0.001, 10.0, 5.0))
    assert numbers(page) == ["0.001", "0.01", "0.1", "1", "10"]
    assert dots(page)[2][0] == 46.0


def test_notes_stand_in_one_paragraph() -> None:
    assert "<p><small>One &amp; two,<br>three.</small></p>" in drawn((1.0,), (1.0,))


def test_a_table_in_markdown_has_its_title_its_cells_and_its_notes_and_a_long_one_is_folded() -> None:
    table = ScoreTable(title="t", columns=("of", "error %"), rows=(("ours", 4.25), ("none", None)), notes=("One.",))
    rows = ["| of | error % |", "|---|--:|", "| ours | 4.2 |", "| none |  |"]
    assert list(report.table_lines(table)) == ["**t**", "", *rows, "", "One.  "]
    long = list(report.table_lines(replace(table, rows=table.rows * 7)))
    assert (long[0], long[-1]) == ('<details markdown="1"><summary>t</summary>', "</details>")
