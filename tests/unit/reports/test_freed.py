"""What shares would free: k jobs on one GPU at a time free k - 1, and what is left of a GPU frees nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.reports.freed import STAY, freed_by, freed_times_s

Stay = tuple[tuple[str, str], tuple[float, float, float, float, int]]
"""The GPU's type and the user; then a row of `STAY`."""


def stay(
    started_at_s: float = 0.0, percent: int = 25, user: str = "ada", gpu: str = "v100", price: float = 1.0
) -> Stay:
    """Return a job of 100 s."""
    return (gpu, user), (started_at_s, 100.0, price, 1.5 * price, percent)


def freed_s(*stays: Stay, at: int = 0) -> float:
    packed: dict[tuple[str, ...], bytes] = {}
    for names, row in stays:
        packed[names] = packed.get(names, b"") + np.array([row], STAY).tobytes()
    return sum(each_s[at] for each_s in freed_by(packed, 0, 1).values())


def one_by_one(rows: list[tuple[float, float, float, float, int]]) -> list[float]:
    """Return what each share frees, as the module's text has it, each job looking at all GPUs."""
    freed, gpus = [0.0] * len(rows), list[list[tuple[float, int]]]()
    for place in sorted(range(len(rows)), key=lambda place: rows[place][0]):
        now_s, duration_s, price, _, percent = rows[place]
        end_s = now_s + duration_s * price
        gpus = [parts for parts in ([part for part in gpu if part[0] > now_s] for gpu in gpus) if parts]
        rooms = [(100 - sum(each for _, each in parts), number) for number, parts in enumerate(gpus)]
        fitting = [number for room, number in sorted(rooms) if room >= percent]
        if not fitting:
            gpus.append([])
        chosen = gpus[fitting[0] if fitting else -1]
        freed[place] = duration_s - max(0.0, end_s - max((end for end, _ in chosen), default=now_s))
        chosen.append((end_s, percent))
    return freed


@given(
    st.lists(
        st.tuples(
            st.integers(0, 300),
            st.integers(1, 120),
            st.sampled_from([1.0, 1.25]),
            st.just(1.5),
            st.sampled_from([20, 33, 75]),
        ),
        max_size=60,
    )
)
def test_each_job_stands_where_a_look_at_all_gpus_puts_it(rows: list[tuple[float, float, float, float, int]]) -> None:
    actual = freed_times_s(np.array(rows, STAY), np.zeros(len(rows), int))
    assert actual.tolist() == pytest.approx(one_by_one(rows))


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
    assert freed_s(stay(), stay(user="bob"), at=1) == 100.0


def test_at_the_worst_prices_shares_free_less() -> None:
    # Both take 150 s on their GPU, where each had 100 s of its own.
    assert freed_s(stay(), stay(), at=2) == 50.0


def test_each_job_has_its_own_part_of_the_sum_in_the_order_of_the_question() -> None:
    rows = np.array([row for _, row in (stay(60.0), stay())], STAY)
    assert [*freed_times_s(rows, np.zeros(2, int))] == [40.0, 0.0]


@given(st.lists(st.tuples(st.floats(0, 300), st.sampled_from([25, 33, 50, 75])), max_size=20))
def test_no_more_is_freed_than_all_jobs_at_a_time_but_one_gpu(jobs: list[tuple[float, int]]) -> None:
    stays = [stay(start, percent) for start, percent in jobs]
    ends = sorted((start, start + 100.0) for start, _ in jobs)
    busy, until = 0.0, 0.0
    for start, end in ends:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    assert -1e-6 <= freed_s(*stays) <= 100.0 * len(stays) - busy + 1e-6
