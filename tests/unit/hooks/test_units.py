"""Durations as people read them."""

from __future__ import annotations

import pytest

from gpusage_hooks.units import seconds


@pytest.mark.parametrize(
    ("time_s", "words"),
    [
        (2e-6, "2 us"),
        (0.197, "197 ms"),
        (1.5, "1.5 s"),
        (599.0, "599 s"),
        (1170.0, "19.5 min"),
        (3599.0, "60 min"),
        (9.96e5, "277 h"),
        (1.18e7, "3278 h"),
    ],
)
def test_long_durations_are_minutes_and_hours(time_s: float, words: str) -> None:
    assert seconds(time_s) == words
