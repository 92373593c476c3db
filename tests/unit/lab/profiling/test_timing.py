from __future__ import annotations

from time import monotonic

import pytest

from gpusage_lab.profiling.timing import Window, quantile, step_ends, summary


def test_only_steps_inside_the_window_count() -> None:
    ends = [0.5, 1.0, 1.5, 2.0, 3.0, 4.5]
    timing = summary(ends, Window(start=1, end=3), batch_size=4)
    # ends 1.0, 1.5, 2.0 and 3.0: three steps in 2 s
    assert (timing["steps"], timing["steps_per_s"], timing["samples_per_s"]) == (3, 1.5, 6.0)
    assert (timing["step_time_s"], timing["step_time_p10_s"]) == (0.5, 0.5)


def test_a_step_longer_than_the_window_is_seen_once() -> None:
    timing = summary([0.5, 4.0, 7.5], Window(start=1, end=2), batch_size=1)
    assert (timing["steps"], timing["step_time_s"]) == (1, 3.5)


def test_no_step_has_no_time() -> None:
    assert summary([0.5], Window(start=1, end=2), batch_size=1) == {"steps": 0}


def test_steps_run_before_and_after_the_window() -> None:
    start = monotonic() + 1.0
    window = Window(start=start, end=start + 0.03)
    ends = step_ends(lambda: None, "cpu", window)
    assert ends[0] < window.start
    assert ends[-1] > window.end


@pytest.mark.parametrize(("level", "expected"), [(0, 1), (0.5, 2.5), (1, 4), (0.9, 3.7)])
def test_a_quantile_lies_between_its_neighbours(level: float, expected: float) -> None:
    assert quantile([4, 1, 3, 2], level) == pytest.approx(expected)
