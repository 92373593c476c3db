"""What shares would free: k jobs on one GPU at a time free k - 1, and what is left of a GPU frees nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.reports.freed import Stay, freed_times_s


def stay(
    started_at_s: float = 0.0, percent: int = 25, user: str = "ada", gpu: str = "v100", price: float = 1.0
) -> Stay:
    """Return a job of 100 s."""
    return Stay(gpu=gpu, user=user, started_at_s=started_at_s, duration_s=100.0, share_percent=percent, slowdown=price)


def freed_s(*stays: Stay, users_apart: bool = True) -> float:
    return sum(freed_times_s(stays, users_apart=users_apart))


@pytest.mark.parametrize(
    ("stays", "expected"),
    [
        pytest.param([stay()], 0.0, id="alone"),
        pytest.param([stay(price=1.25)], -25.0, id="alone, and slower"),
        pytest.param([stay()] * 2, 100.0, id="two"),
        pytest.param([stay()] * 4, 300.0, id="four"),
        pytest.param([stay()] * 5, 300.0, id="the fifth has a GPU of its own"),
        pytest.param([stay(percent=75)] * 6, 0.0, id="no two of three quarters fit"),
        pytest.param([stay(percent=75), stay(percent=25)], 100.0, id="what fits beside three quarters"),
        pytest.param([stay(), stay(60.0)], 40.0, id="beside each other for 40 s"),
        pytest.param([stay(), stay(100.0)], 0.0, id="one after the other"),
        pytest.param([stay(), stay(gpu="t4")], 0.0, id="on two types"),
        pytest.param([stay(), stay(user="bob")], 0.0, id="of two users"),
        pytest.param([stay(price=1.1), stay(price=1.1)], 90.0, id="the price counts"),
    ],
)
def test_k_jobs_at_a_time_free_all_gpus_but_one(stays: list[Stay], expected: float) -> None:
    assert freed_s(*stays) == pytest.approx(expected)


def test_behind_walls_users_share_a_gpu() -> None:
    assert freed_s(stay(), stay(user="bob"), users_apart=False) == 100.0


def test_each_job_has_its_own_part_of_the_sum_in_the_order_of_the_question() -> None:
    assert [*freed_times_s([stay(60.0), stay()], users_apart=True)] == [40.0, 0.0]


@given(st.lists(st.tuples(st.floats(0, 300), st.sampled_from([25, 33, 50, 75])), max_size=20))
def test_no_more_is_freed_than_all_jobs_at_a_time_but_one_gpu(jobs: list[tuple[float, int]]) -> None:
    stays = [stay(start, percent) for start, percent in jobs]
    ends = sorted((start, start + 100.0) for start, _ in jobs)
    busy, until = 0.0, 0.0
    for start, end in ends:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    assert -1e-6 <= freed_s(*stays) <= 100.0 * len(stays) - busy + 1e-6
