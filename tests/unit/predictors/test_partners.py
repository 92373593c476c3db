"""What partners add to a price: more with each, nothing to a job that waits for its host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.predictors.sharing.colocation import slowdown_with_partners
from gpusage_hooks.types import Interval

PRICES = st.floats(1.0, 8.0)


def exactly(price: float) -> Interval:
    return Interval(value=price, low=price, high=price)


def test_a_partner_costs_a_job_that_the_gpu_decides_what_was_measured() -> None:
    """Two inference jobs with 50 % each on a V100: 5 to 12 % more than alone at 50 %; the high end is above these."""
    actual = slowdown_with_partners(exactly(1.8), 1)
    assert actual.value / 1.8 == pytest.approx(1.08, abs=0.03)
    assert actual.high / 1.8 == pytest.approx(1.14, abs=0.03)


def test_a_job_that_waits_for_its_host_pays_nothing_for_partners() -> None:
    assert slowdown_with_partners(exactly(1.0), 3) == exactly(1.0)


@given(PRICES, st.floats(1.0, 1.5), st.floats(1.0, 1.5), st.integers(0, 6))
def test_partners_never_make_a_job_faster_and_each_costs_more(
    value: float, below: float, above: float, partners: int
) -> None:
    price = Interval(value=value, low=max(value / below, 1.0), high=value * above)
    fewer, more = slowdown_with_partners(price, partners), slowdown_with_partners(price, partners + 1)
    assert price.value <= fewer.value <= more.value
    assert price.high <= fewer.high * 1.000001
    assert fewer.high <= more.high * 1.000001
    assert fewer.low <= fewer.value <= fewer.high


@given(PRICES, PRICES)
def test_what_costs_more_alone_costs_more_beside_partners(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert slowdown_with_partners(exactly(less), 2).value <= slowdown_with_partners(exactly(more), 2).value


def test_without_partners_the_price_is_what_it_is_alone() -> None:
    price = Interval(value=1.5, low=1.2, high=2.0)
    actual = slowdown_with_partners(price, 0)
    assert (actual.value, actual.low, actual.high) == (1.5, 1.2, pytest.approx(2.0))
