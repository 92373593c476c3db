"""What the earlier runs of one job showed, robustly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.experience.learned import Finding
from gpusage.experience.learning import job_experience
from gpusage.experience.runs import WINDOW_RUNS, Run
from gpusage_hooks.types import Interval
from runs import GIB, RUN, V100, runs, shared

WHOLE, HALF = (V100, 100), (V100, 50)


def test_one_strange_run_hardly_moves_the_middle() -> None:
    seen = job_experience(runs(0.4, 0.41, 0.39, 0.99, 0.4)).utilization[WHOLE]
    assert seen.value == pytest.approx(0.4)
    assert seen.low < 0.39
    assert seen.high < 0.5


def test_more_runs_narrow_the_interval_to_what_always_differs() -> None:
    widths = [job_experience(runs(*[0.4] * count)).utilization[WHOLE].high for count in (1, 3, 12)]
    assert widths == sorted(widths, reverse=True)
    assert 0.44 < widths[-1] < widths[0] < 0.5


def test_only_the_newest_runs_count() -> None:
    assert job_experience(runs(*[0.9] * 30, *[0.3] * WINDOW_RUNS)).utilization[WHOLE].value == pytest.approx(0.3)


def test_runs_on_shares_take_nothing_from_what_whole_runs_showed() -> None:
    """Else a share would make its own reason forgotten, and be given up again."""
    later = [replace(RUN, share_percent=50, utilization=0.7, ended_at_s=2e9 + hour) for hour in range(50)]
    seen = job_experience([*runs(0.4), *later])
    assert seen.utilization[WHOLE].value == pytest.approx(0.4)
    assert seen.utilization[HALF].value == pytest.approx(0.7)


def test_a_share_is_as_slow_as_its_runs_were_against_whole_ones_where_all_agree() -> None:
    slow = shared(1.5 * 3600)
    assert job_experience([RUN, RUN, slow, slow]).slowdown == {HALF: pytest.approx(1.5)}
    assert job_experience([RUN, slow, slow, slow]).slowdown == {HALF: pytest.approx(1.5)}
    assert job_experience([RUN, RUN, slow]).slowdown == {}  # too few
    assert job_experience([slow, slow, slow, slow]).slowdown == {}  # none of them whole
    assert job_experience([RUN, replace(RUN, duration_s=9e3), slow, slow]).slowdown == {}  # not alike
    assert job_experience([RUN, RUN, shared(1e9), shared(1e9)]).slowdown == {HALF: 4.0}  # bounded


def test_a_share_that_was_dear_stays_dear_however_long_whole_runs_take_later() -> None:
    """And a little dearer than it looked, once it was left: whole runs alone must not bring it back."""
    slow, later = shared(1.4 * 3600), [replace(RUN, duration_s=1.1 * 3600, ended_at_s=3e9 + i) for i in range(20)]
    first = [RUN, slow, slow, slow]
    assert job_experience(first).slowdown == {HALF: pytest.approx(1.4)}
    assert job_experience([*first, *later]).slowdown == {HALF: pytest.approx(1.1 * 1.4)}


def test_memory_has_a_margin_that_never_passes_a_cap_that_was_enough() -> None:
    assert job_experience([RUN]).memory_bytes == Interval(value=4 * GIB, low=4 * GIB, high=5 * GIB)
    capped = replace(RUN, memory_limit_bytes=int(4.2 * GIB))
    seen = job_experience([capped, capped]).memory_bytes
    assert seen is not None
    assert seen.high == int(4.2 * GIB)


def test_what_died_of_too_little_memory_needs_more_than_it_had() -> None:
    died = replace(RUN, out_of_memory=True, utilization=None, duration_s=None, memory_bytes=8 * GIB)
    for seen in (job_experience([died]), job_experience([RUN, RUN, died])):
        assert seen.memory_bytes is not None
        assert seen.memory_bytes.high >= 10 * GIB


@pytest.mark.parametrize(
    ("run_count", "words"), [(1, "1 earlier run lacked memory: 10.0 GiB (up to"), (2, "needed 4.0 GiB")]
)
def test_what_no_run_showed_is_said_to_be_assumed(run_count: int, words: str) -> None:
    died = replace(RUN, out_of_memory=True, utilization=None, duration_s=None, memory_bytes=8 * GIB)
    experience = job_experience([died, replace(RUN, utilization=None)][:run_count])
    assert words in Finding(experience=experience, source="earlier runs").describe("v100")


def test_what_died_on_a_slice_needs_more_than_the_slice_has() -> None:
    """A slice that is known says so, whatever the sampler saw last."""
    died = replace(RUN, out_of_memory=True, utilization=None, duration_s=None, memory_bytes=2 * GIB, is_slice=True)
    seen = job_experience([replace(died, memory_limit_bytes=20 * GIB)]).memory_bytes
    assert seen is not None
    assert seen.low > 20 * GIB


def test_processes_that_took_more_than_their_part_need_what_they_took_in_sum() -> None:
    """The cap of MPS holds each process alone, so that it says nothing of two."""
    above = replace(RUN, memory_limit_bytes=3 * GIB)
    assert job_experience([above]).memory_bytes == Interval(value=4 * GIB, low=4 * GIB, high=5 * GIB)


def full(ended_at_s: float) -> Run:
    return replace(RUN, share_percent=50, utilization=0.99, ended_at_s=ended_at_s)


def test_whole_runs_are_forgotten_where_shares_show_twice_that_the_job_has_changed() -> None:
    """A job that keeps 30 % of a GPU busy cannot fill half of one."""
    whole = runs(0.3, 0.3)
    assert job_experience([*whole, full(2e9)]).utilization[WHOLE].value == pytest.approx(0.3)
    assert WHOLE not in job_experience([*whole, full(2e9), full(2.1e9)]).utilization
    changed = replace(RUN, utilization=0.7, ended_at_s=2.2e9)
    seen = job_experience([*whole, full(2e9), full(2.1e9), changed])
    assert seen.utilization[WHOLE].value == pytest.approx(0.7)


def test_a_share_that_is_full_although_nothing_changed_makes_nobody_forget_again() -> None:
    """Else the job would swing for ever: its whole runs remembered, then forgotten."""
    again = replace(RUN, utilization=0.31, ended_at_s=2.2e9)
    seen = job_experience([*runs(0.3, 0.3), full(2e9), full(2.1e9), again, full(2.3e9), full(2.4e9)])
    assert seen.utilization[WHOLE].value == pytest.approx(0.3)


def test_full_shares_before_any_whole_run_show_no_change() -> None:
    """Nothing says how busy the job keeps a whole GPU until one has run."""
    seen = job_experience([full(2e9), full(2.1e9), replace(RUN, utilization=0.3, ended_at_s=2.2e9)])
    assert seen.utilization_runs == {HALF: 2, WHOLE: 1}


@pytest.mark.parametrize(
    ("whole", "share_percent", "utilization", "forgets"),
    [
        pytest.param(0.3, 50, 0.95, True, id="just full"),
        pytest.param(0.3, 50, 0.94, False, id="not quite full"),
        pytest.param(0.3, 50, None, False, id="not observed"),
        pytest.param(0.3, 100, 0.99, False, id="no share at all"),
        pytest.param(0.39, 50, 0.99, True, id="could have been 78 % busy"),
        pytest.param(0.4, 50, 0.99, False, id="could have been 80 % busy"),
    ],
)
def test_only_shares_that_were_observed_full_and_could_not_have_been_show_a_change(
    whole: float, share_percent: int, utilization: float | None, *, forgets: bool
) -> None:
    """FULL is 0.95 and NOT_FULL 0.8; on half of the SMs a job can be at most twice as busy as on all of them."""
    later = [replace(RUN, share_percent=share_percent, utilization=utilization, ended_at_s=2e9 + i) for i in range(2)]
    seen = job_experience([*runs(whole, whole), *later])
    counted = seen.utilization_runs.get(WHOLE, 0) - 2 * (share_percent == 100)
    assert counted == (0 if forgets else 2)
