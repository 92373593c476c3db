"""When history may decide: by checked runs of the site, of several users, and of the user whose job it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.history.trust import MOST_OF_ONE, Checked, held, trust_of
from gpusage_hooks.types import Figure, Interval, Known, Outcome
from records import USAGE


def checked(user: str, count: int, misses: int = 0) -> list[Checked]:
    return [Checked(user=user, ended_at_s=float(n), held=n >= misses) for n in range(count)]


def site(users: int, count: int, misses: int = 0) -> list[Checked]:
    return [each for user in range(users) for each in checked(str(user), count, misses)]


def test_a_site_earns_it_with_two_hundred_checked_runs() -> None:
    assert trust_of(site(5, 39)).why_not("0") == (
        "history is observed only: 195 of 200 runs of this site are checked yet"
    )
    assert trust_of(site(5, 40)).why_not("0") == ""


def test_nobody_earns_it_alone() -> None:
    """Of ten thousand runs of one user fifty count."""
    trust = trust_of(checked("0", 10_000))
    assert trust.site.checked == MOST_OF_ONE
    assert "50 of 200" in trust.why_not("0")


def test_a_site_that_misses_is_observed() -> None:
    assert trust_of(site(5, 40, misses=4)).why_not("0") == ""
    assert "88 % of 200 runs of this site" in trust_of(site(5, 40, misses=5)).why_not("0")


def test_a_user_whose_own_jobs_are_missed_is_observed_whatever_the_site_has_earned() -> None:
    trust = trust_of([*site(10, 50), *checked("x", 30, misses=6), *checked("new", 19)])
    assert trust.why_not("x") == "history is observed only: 80 % of 30 runs of this user stayed below what was told"
    assert "19 of 20 runs of this user" in trust.why_not("new")
    assert "0 of 20 runs of this user" in trust.why_not("never seen")


TOLD = Known(
    gpu_utilization=Figure(interval=Interval(value=0.2, low=0.1, high=0.3), source=""),
    memory_bytes=Figure(interval=Interval(value=1e9, low=1e9, high=3e9), source=""),
)


@pytest.mark.parametrize(
    ("told", "utilization", "memory_bytes", "outcome", "expected"),
    [
        pytest.param(TOLD, 0.05, 10**8, "completed", True, id="below its lower end is no miss"),
        pytest.param(TOLD, 0.31, 10**8, "completed", False, id="busier"),
        pytest.param(TOLD, 0.2, 4 * 10**9, "completed", False, id="larger"),
        pytest.param(TOLD, None, 10**9, "completed", True, id="only its memory was seen"),
        pytest.param(TOLD, None, None, "completed", None, id="nothing was seen"),
        pytest.param(TOLD, None, 10**9, "out_of_memory", False, id="died of too little"),
        pytest.param(Known(), 0.9, 10**9, "completed", None, id="nothing was told"),
    ],
)
def test_a_run_holds_below_the_upper_ends(
    told: Known, utilization: float | None, memory_bytes: int | None, outcome: Outcome, *, expected: bool | None
) -> None:
    usage = replace(USAGE, memory_bytes=memory_bytes, outcome=outcome)
    assert held(told, usage, utilization) is expected
