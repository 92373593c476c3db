"""The division of a GPU by max-min fairness."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.cli.colocate import STEP_PERCENT, allowed_percents, max_min_percents
from gpusage_hooks.errors import RequestError


def falling(strengths: list[float]) -> list[dict[int, float]]:
    """Return jobs that are slowed by a power of the part that they lack."""
    return [{part: (100 / part) ** power for part in allowed_percents(len(strengths))} for power in strengths]


def worst(jobs: list[dict[int, float]], parts: tuple[int, ...]) -> float:
    return max(job[part] for job, part in zip(jobs, parts, strict=True))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=3))
def test_no_other_division_slows_the_slowest_less(strengths: list[float]) -> None:
    jobs = falling(strengths)
    parts = max_min_percents(jobs)
    assert sum(parts) <= 100
    others = (other for other in product(allowed_percents(len(jobs)), repeat=len(jobs)) if sum(other) <= 100)
    assert worst(jobs, parts) == min(worst(jobs, other) for other in others)


def test_a_job_that_no_part_slows_leaves_the_threads_to_the_other() -> None:
    assert max_min_percents(falling([0.0, 1.0])) == (STEP_PERCENT, 95)


def test_equal_jobs_have_equal_parts() -> None:
    assert max_min_percents(falling([0.5, 0.5])) == (50, 50)


def test_more_jobs_than_parts_are_refused() -> None:
    with pytest.raises(RequestError, match="at most 20; got 21"):
        max_min_percents([{5: 1.0}] * 21)
