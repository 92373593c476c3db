"""When predictions may decide: by promises that held, and by checked runs of the site and of the job's user."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.experience.runs import Run
from gpusage.experience.trust import (
    MOST_OF_A_USER,
    PROMISE_WINDOW,
    SUSPEND_MISSES,
    Check,
    estimate_held,
    history_trust,
    is_suspended,
    promise_held,
)
from gpusage_hooks.types import Figure, Interval, ObservedFigures
from runs import GIB, RUN, shared


def checked(user: str, count: int, misses: int = 0) -> list[Check]:
    return [Check(user=user, ended_at_s=float(n), held=n >= misses) for n in range(count)]


def site(users: int, count: int, misses: int = 0) -> list[Check]:
    return [each for user in range(users) for each in checked(str(user), count, misses)]


def test_a_site_earns_it_with_two_hundred_checked_runs() -> None:
    assert history_trust(site(5, 39)).why_not("0") == (
        "history is observed only: 195 of 200 runs of this site are checked yet"
    )
    assert history_trust(site(5, 40)).why_not("0") == ""


def test_nobody_earns_it_alone() -> None:
    """Of ten thousand runs of one user fifty count."""
    trust = history_trust(checked("0", 10_000))
    assert trust.site.checked == MOST_OF_A_USER
    assert "50 of 200" in trust.why_not("0")


def test_a_site_whose_users_mostly_have_missed_estimates_is_observed() -> None:
    assert history_trust(site(5, 40, misses=4)).why_not("0") == ""
    trust = history_trust([*checked("me", 40), *site(5, 40, misses=5)])
    assert trust.why_not("me") == "history is observed only: its estimates missed for 5 of 6 users of this site"


@pytest.mark.parametrize("honest", [3, 4, 6])
def test_two_users_whose_runs_all_miss_take_it_from_nobody(honest: int) -> None:
    """One with fifty misses stopped it for a whole site of two hundred runs."""
    attackers = [*checked("a", 50, misses=50), *checked("b", 50, misses=50)]
    assert history_trust([*site(honest, 50), *attackers]).why_not("0") == ""


def test_a_user_whose_own_jobs_are_missed_is_observed_whatever_the_site_has_earned() -> None:
    trust = history_trust([*site(10, 50), *checked("x", 30, misses=6), *checked("new", 19)])
    assert trust.why_not("x") == "history is observed only: 80 % of 30 runs of this user stayed within their estimates"
    assert "19 of 20 runs of this user" in trust.why_not("new")
    assert "0 of 20 runs of this user" in trust.why_not("never seen")


def test_one_run_that_starved_takes_its_users_trust_and_nobody_elses() -> None:
    starved = Check(user="0", ended_at_s=100.0, held=False, out_of_memory=True)
    assert "1 of 20 runs of this user" in history_trust([*site(8, 50), starved]).why_not("0")
    later = [replace(each, ended_at_s=101.0 + each.ended_at_s) for each in checked("0", 19)]
    trust = history_trust([*site(8, 50), starved, *later])
    assert [trust.why_not(str(user)) for user in range(8)] == [""] * 8


ESTIMATE = ObservedFigures(
    gpu_utilization=Figure(interval=Interval(value=0.2, low=0.1, high=0.3), source=""),
    memory_bytes=Figure(interval=Interval(value=1e9, low=1e9, high=3e9), source=""),
)


@pytest.mark.parametrize(
    ("estimate", "utilization", "memory_bytes", "out_of_memory", "expected"),
    [
        pytest.param(ESTIMATE, 0.05, 10**8, False, True, id="below its lower end is no miss"),
        pytest.param(ESTIMATE, 0.31, 10**8, False, False, id="busier"),
        pytest.param(ESTIMATE, 0.2, 4 * 10**9, False, False, id="larger"),
        pytest.param(ESTIMATE, None, 10**9, False, True, id="only its memory was seen"),
        pytest.param(ESTIMATE, None, None, False, None, id="nothing was seen"),
        pytest.param(ESTIMATE, None, 10**9, True, False, id="died of too little"),
        pytest.param(ObservedFigures(), 0.9, 10**9, False, None, id="nothing was estimated"),
    ],
)
def test_a_run_holds_below_the_upper_ends(
    estimate: ObservedFigures,
    utilization: float | None,
    memory_bytes: int | None,
    *,
    out_of_memory: bool,
    expected: bool | None,
) -> None:
    run = replace(RUN, peak_utilization=utilization, memory_bytes=memory_bytes, out_of_memory=out_of_memory)
    assert estimate_held(estimate, run) is expected


WHOLE = [RUN, RUN, RUN]
HELD_BACK = replace(RUN, promised_slowdown=1.3, promised_memory_bytes=8 * GIB, utilization_high=0.5)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        pytest.param(RUN, None, id="nothing was promised"),
        pytest.param(shared(1.2 * 3600), True, id="as fast as promised"),
        pytest.param(shared(2.0 * 3600), False, id="slower than promised"),
        pytest.param(replace(shared(3600), out_of_memory=True), False, id="out of memory"),
        pytest.param(replace(shared(3600), promised_memory_bytes=2 * GIB), False, id="more memory than promised"),
        pytest.param(HELD_BACK, True, id="a whole run that was as idle as the share was decided for"),
        pytest.param(replace(HELD_BACK, utilization=0.9), False, id="a whole run that was busier"),
        pytest.param(replace(HELD_BACK, utilization=None), None, id="a whole run that nobody looked at"),
    ],
)
def test_a_promise_is_kept_or_broken_where_something_tells(run: Run, expected: bool | None) -> None:  # a table
    assert promise_held(run, [*WHOLE, run]) is expected


def test_a_share_that_is_idle_at_times_is_not_slowed_down_whatever_durations_tell() -> None:
    run = replace(shared(3600), utilization=0.6)
    assert promise_held(run, [run]) is True
    assert promise_held(replace(run, utilization=0.97), [run]) is None


def test_trust_goes_after_five_misses_of_twelve_and_returns_after_twelve_with_one() -> None:
    assert not is_suspended([False] * 4)
    assert is_suspended([False] * 5)
    assert is_suspended([False] * 5 + [True] * 11)
    assert not is_suspended([False] * 5 + [True] * 12)
    assert not is_suspended([False] * 5 + [False] + [True] * 12)
    assert is_suspended([False] * 5 + [False, True] * 20)


@given(st.lists(st.booleans(), max_size=200))
def test_trust_never_flutters(held: list[bool]) -> None:
    """Between one change and the next there are always many promises, whatever happens."""
    states = [is_suspended(held[:count]) for count in range(len(held) + 1)]
    changes = [index for index, (before, after) in enumerate(pairwise(states)) if before != after]
    assert all(later - earlier >= SUSPEND_MISSES for earlier, later in pairwise(changes))
    assert all(later - earlier >= PROMISE_WINDOW for earlier, later in list(pairwise(changes))[::2])
    assert len(changes) <= 2 * len(held) / (SUSPEND_MISSES + PROMISE_WINDOW) + 2
