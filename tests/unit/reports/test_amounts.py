"""GPU hours asked, booked, used: what each kind of run adds to them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.reports.amounts import Amounts, amounts_of, expected_slowdown, total
from gpusage.store.rows import Observation
from gpusage_hooks.types import Code, Interval
from observed import HALF, month, record, usage
from records import RECORD, USAGE

SHARED = record(1, percent=50)


def amounts(**rest: object) -> Amounts:
    """Return what two hours on half a GPU took."""
    return amounts_of(Observation(usage=usage(SHARED, **{"granted": HALF, **rest}), decision=SHARED))


def test_a_share_with_nobody_beside_it_frees_nothing_and_takes_longer() -> None:
    # 2 h x 50 % = 1 h booked; alone on the whole GPU 2 h / 1.25 = 1.6 h; half of the booked hour with a kernel
    assert amounts() == Amounts(requested=1.6, booked=1.0, used=0.5, idle=0.5, held=2.0)
    assert amounts().freed == pytest.approx(-0.4)


def test_two_shares_beside_each_other_free_one_gpu() -> None:
    # Each holds half of the GPU for its 2 h, which on a GPU of its own would have been 1.6 h.
    both = total([amounts(alone_s=0.0), amounts(alone_s=0.0)])
    assert (both.held, both.freed) == pytest.approx((2.0, 2 * 1.6 - 2.0))
    assert amounts(alone_s=7100.0 / 2).held == pytest.approx(1.5)


def test_four_shares_on_one_gpu_free_three() -> None:
    """Two were counted wherever others were on the GPU, until November 2026."""
    four = total([amounts(alone_s=0.0, held_s=7100.0 / 4)] * 4)
    assert (four.held, four.freed) == pytest.approx((2.0, 4 * 1.6 - 2.0))


def test_six_shares_of_three_quarters_on_six_gpus_free_none() -> None:
    """Until November 2026 six ``mps:75`` on six V100s "saved" 22 %."""
    cheap = record(1, percent=75)
    run = usage(cheap, granted=replace(HALF, share_percent=75))
    assert total([amounts_of(Observation(usage=run, decision=cheap))] * 6).freed < 0.0


def test_a_run_that_starved_is_lost_whole() -> None:
    assert amounts(outcome="out_of_memory").freed == -2.0


def test_a_share_that_was_not_given_frees_nothing() -> None:
    observed = record(1, mode="advise", percent=50)
    actual = amounts_of(Observation(usage=usage(observed), decision=observed))
    assert (actual.requested, actual.booked, actual.freed) == (2.0, 2.0, 0.0)


@pytest.mark.parametrize("unknown", [{"gpu_utilization": None}, {"sampled_s": 59.0}, {"alone_s": 6000.0}])
def test_what_nobody_can_tell_is_not_seen_and_never_idle(unknown: dict[str, float | None]) -> None:
    actual = amounts(**unknown)
    assert (actual.booked, actual.used, actual.idle, actual.unseen) == (1.0, 0.0, 0.0, 1.0)


def test_a_job_on_two_gpus_takes_two_and_one_without_a_decision_one() -> None:
    unshared = record(1, percent=None)
    assert amounts_of(Observation(usage=usage(unshared), decision=unshared)).booked == 4.0
    assert amounts_of(Observation(usage=usage(unshared), decision=None)).booked == 2.0


def test_a_share_that_the_user_asked_for_frees_nothing() -> None:
    own = replace(SHARED, decision=replace(SHARED.decision, code=Code.KEEP))
    actual = amounts_of(Observation(usage=usage(own, granted=HALF), decision=own))
    assert (actual.requested, actual.freed) == (1.0, 0.0)


def test_nothing_adds_up_to_nothing() -> None:
    assert total([]) == Amounts()


@given(st.floats(0.0, 1.0), st.floats(0.0, 8000.0), st.integers(1, 100))
def test_what_was_booked_is_used_idle_or_not_seen(utilization: float, alone_s: float, percent: int) -> None:
    granted = replace(HALF, share_percent=percent)
    actual = amounts(gpu_utilization=utilization, alone_s=alone_s, granted=granted)
    assert actual.used + actual.idle + actual.unseen == pytest.approx(actual.booked)


def test_the_sum_is_the_sum_of_the_runs() -> None:
    each = [amounts_of(observed) for observed in month()]
    assert total(each).booked == pytest.approx(sum(one.booked for one in each))
    assert total(each).times(2.0).freed == pytest.approx(2 * sum(one.freed for one in each))


def test_the_price_of_a_share_is_the_one_beside_partners_that_its_user_read() -> None:
    """Alone on the share the same job is 3 % slower; the report said that, and the decision 15 %."""
    partners = Interval(value=1.15, low=1.0, high=1.37)
    decision = replace(RECORD.decision, slowdown_with_partners=partners)
    assert expected_slowdown(Observation(usage=USAGE, decision=replace(RECORD, decision=decision))) == partners
    alone = Observation(usage=USAGE, decision=RECORD)
    assert expected_slowdown(alone) == Interval(value=1.0, low=1.0, high=1.0)
    assert expected_slowdown(replace(alone, decision=None)) == Interval(value=1.0, low=1.0, high=1.0)
