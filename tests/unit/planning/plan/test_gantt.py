"""A plan's chart: its axis has times that people read."""

from __future__ import annotations

import re

import pytest

from gpusage_planning.gantt import Bar, chart


@pytest.mark.parametrize(
    ("end_s", "expected"),
    [
        (3 * 3600 + 13 * 60, ["0 h", "1 h", "2 h", "3 h"]),  # 0.0, 0.6, 1.3 h until November 2026
        (300.0, ["0 min", "1 min", "2 min", "3 min", "4 min", "5 min"]),
        (6 * 3600.0, ["0 h", "1 h", "2 h", "3 h", "4 h", "5 h", "6 h"]),
        (95 * 60.0, ["0 min", "30 min", "60 min", "90 min"]),
        (10 * 86400.0, ["0 d", "2 d", "4 d", "6 d", "8 d", "10 d"]),
        (3 * 86400.0, ["0 h", "12 h", "24 h", "36 h", "48 h", "60 h", "72 h"]),
        (59.0, ["0 s", "10 s", "20 s", "30 s", "40 s", "50 s"]),
        (1.0, ["0 s", "1 s"]),
        (0.0, ["0 s", "1 s"]),
    ],
)
def test_the_axis_has_round_times(end_s: float, expected: list[str]) -> None:
    drawn = chart([Bar(row="n", label="job", start_s=0.0, end_s=end_s)], {"n": 1})
    assert re.findall(r"font-size='11'>([^<]+)<", drawn) == expected
