"""What a site's runs tell of the next job: whose runs count, how far, and on which GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusage.devices.catalogue import Catalogue, describe_gpus
from gpusage.experience.history import History
from gpusage.experience.identity import job_identity
from gpusage.experience.runs import WINDOW_RUNS, Run
from gpusage_hooks.types import GpuRequest, Interval, JobIdentity, ObservedFigures, Submitter
from gpusage_lab.history.training import fit_history
from past_runs import A100, ADA, GIB, V100, of_user, past_runs

CATALOGUE = Catalogue(describe_gpus())
UTILIZATIONS = st.lists(st.floats(0.02, 1.0), min_size=1, max_size=40)


def history_of(*runs: list[Run]) -> History:
    return fit_history([run for each in runs for run in each], CATALOGUE.find, 0.0)[0]


def estimate(history: History, who: JobIdentity = ADA, gpu: str = V100) -> ObservedFigures:
    return history.known_figures(who, CATALOGUE.find(gpu), CATALOGUE.find)


def busy(history: History, who: JobIdentity = ADA, gpu: str = V100) -> Interval | None:
    known = estimate(history, who, gpu)
    return known.gpu_utilization.interval if known.gpu_utilization else None


def test_one_run_tells_of_the_next_with_a_wide_interval() -> None:
    """One run: half as much again is possible, and so is a third less."""
    known = estimate(history_of(past_runs([0.2])))
    assert known.gpu_utilization is not None
    assert known.gpu_utilization.interval == Interval(value=0.2, low=pytest.approx(0.2 / 1.5), high=pytest.approx(0.3))
    assert known.gpu_utilization.source == "1 run of yours with this script and name"
    assert known.memory_bytes is not None
    assert known.memory_bytes.interval.high == pytest.approx(6 * GIB)


def test_many_like_runs_leave_a_narrow_interval() -> None:
    """From 19 misses on the user's own count: here none."""
    assert busy(history_of(past_runs([0.2] * 30))) == Interval(value=0.2, low=0.2, high=0.2)


def test_a_users_own_misses_make_that_users_interval_wide() -> None:
    """Every tenth run is four times as busy as those of a window before it could show."""
    noisy = busy(history_of(past_runs([0.1, *[0.1] * 13, 0.4] * 6)))
    assert noisy is not None
    assert noisy.high >= 0.4


def test_numbers_in_a_name_do_not_make_another_job() -> None:
    assert busy(history_of(past_runs([0.2])), replace(ADA, job_name="train_17", script_digest="")) is not None


def test_another_job_of_the_user_counts_only_with_three_runs() -> None:
    other = replace(ADA, job_name="eval", script_digest="2" * 16)
    assert busy(history_of(past_runs([0.2, 0.2])), other) is None
    far = busy(history_of(past_runs([0.2, 0.2, 0.2])), other)
    assert far is not None
    assert far.high == pytest.approx(0.2 * 1.3 * 1.3)


def test_two_strangers_runs_tell_nothing_and_three_with_the_same_script_the_highest() -> None:
    idle, also = past_runs([0.05], of_user("2000")), past_runs([0.06], of_user("2001"))
    busier = past_runs([0.4], of_user("3000", job_name="x"))
    assert busy(history_of(idle, also), ADA) is None
    shared = busy(history_of(idle, also, busier), ADA)
    assert shared is not None
    assert shared.high > 0.4
    assert busy(history_of(idle, also, busier), replace(ADA, script_digest="3" * 16)) is None


def test_a_strangers_out_of_memory_raises_nothing() -> None:
    """It can be forged with a cap of one's own."""
    three = [past_runs([0.4], of_user(str(user))) for user in (2000, 2001, 2002)]
    died = replace(three[0][0], peak_utilization=None, memory_bytes=48 * GIB, out_of_memory=True, ended_at_s=2e9)
    assert estimate(history_of(*three, [died])).memory_bytes == estimate(history_of(*three)).memory_bytes
    own = estimate(history_of([replace(died, identity=ADA)])).memory_bytes
    assert own is not None
    assert own.interval.high >= 60 * GIB


@settings(max_examples=60, deadline=None)
@given(own=UTILIZATIONS, others=st.lists(UTILIZATIONS, max_size=3), attacks=UTILIZATIONS)
def test_no_single_user_makes_another_ones_prediction_lower(
    own: list[float], others: list[list[float]], attacks: list[float]
) -> None:
    """Whether the victim has runs or not; whoever has the same script as the attacker."""
    for victims in ([], [past_runs(own)]):
        known = [*victims, *(past_runs(each, of_user(str(3000 + n))) for n, each in enumerate(others))]
        without, with_attacks = history_of(*known), history_of(*known, past_runs(attacks, of_user("666")))
        for quantity in ("gpu_utilization", "memory_bytes"):
            before, after = getattr(estimate(without), quantity), getattr(estimate(with_attacks), quantity)
            if before is not None:
                assert after.interval.high >= before.interval.high


@settings(max_examples=60, deadline=None)
@given(others=st.lists(UTILIZATIONS, min_size=2, max_size=4), attacks=UTILIZATIONS)
def test_who_joins_with_the_same_script_takes_nothing_from_what_others_showed(
    others: list[list[float]], attacks: list[float]
) -> None:
    """Of somebody who has no runs nothing was told before where there were two other users, and now there are three."""
    known = [past_runs(each, of_user(str(3000 + n))) for n, each in enumerate(others)]
    joined = busy(history_of(*known, past_runs(attacks, of_user("666"))))
    assert joined is not None
    assert joined.high >= max(value for each in others for value in each[-WINDOW_RUNS:])


def test_a_slower_gpu_is_busier_and_a_faster_one_is_taken_to_be_as_busy() -> None:
    """The A100 has 1.24 times the fp32 rate of the V100, and 1.73 times its bandwidth."""
    on_a100 = history_of(past_runs([0.2], gpu=A100))
    slower, faster = busy(on_a100, gpu=V100), busy(history_of(past_runs([0.2])), gpu=A100)
    assert slower is not None
    assert faster is not None
    assert slower.value == pytest.approx(0.2 * 1555 / 900, rel=0.01)
    assert faster.value == 0.2


def test_what_takes_most_of_one_gpu_takes_as_much_of_a_larger_one() -> None:
    runs = [replace(run, memory_bytes=15 * GIB) for run in past_runs([0.2])]
    known = estimate(history_of(runs), gpu=A100)
    assert known.memory_bytes is not None
    assert known.memory_bytes.interval.value == pytest.approx(15 * GIB * 40 / 16, rel=0.02)


def test_a_slice_and_a_job_without_a_user_are_told_nothing() -> None:
    history = history_of(past_runs([0.2]))
    cut = replace(CATALOGUE.find(V100), parent_gpu=V100)
    assert history.known_figures(ADA, cut, CATALOGUE.find) == ObservedFigures()
    assert estimate(history, replace(ADA, user="")) == ObservedFigures()


def test_no_run_is_told_from_one_that_had_not_ended() -> None:
    """Thirty runs that all start at once tell nothing of each other."""
    runs = [replace(run, started_at_s=1e9) for run in past_runs([0.2] * 30)]
    _, backtests = fit_history(runs, CATALOGUE.find, 0.0)
    assert len(backtests) == 60
    assert not any(backtest.estimate for backtest in backtests)


def test_the_order_in_which_runs_come_changes_nothing() -> None:
    runs = [*past_runs([0.2, 0.5, 0.3] * 8), *past_runs([0.7, 0.1], of_user("2000"))]
    assert history_of(runs) == history_of(runs[::-1])


def test_equal_requests_have_equal_words() -> None:
    request = GpuRequest(gpu_count=1, cpu_count=8, host_memory_bytes=32 * GIB)
    assert job_identity(Submitter(), request=request).request == ADA.request
