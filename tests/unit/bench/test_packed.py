"""`bench/simulating/packed.py`: Gavel's packing policies, on jobs of which the answer is known."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from gpusage_planning.simulator.jobs import FloatArray

pytest.importorskip("scipy")
sys.path.append(str(Path(__file__).parents[3] / "bench"))

from simulating.lucid import jobs_of, pool_of
from simulating.packed import Choice, FirstCome, InParts, RandomPairs, max_min, simulate_packed, speeds_of

ROUND_S = 10.0
KINDS = np.array([0, 1, 2], dtype=np.int32)
PAIRS = np.array([[0.5, 0.9, 0.8], [0.7, 0.5, 0.0], [0.8, 0.0, 0.5]])
"""The first kind goes well with both others, which cannot share a GPU."""


def ends_s(gpu_count: int, work_s: list[int], throughput: float, choice: Choice) -> FloatArray:
    """Return when jobs end that are all there from the beginning, each with this throughput beside another."""
    whole = np.array(work_s)
    jobs = jobs_of(np.zeros_like(whole), whole, np.ones_like(whole))
    return simulate_packed(jobs, pool_of(gpu_count), np.array([[throughput]]), choice, ROUND_S).end_s


def parts(*kinds: int, gpu_count: int = 1) -> FloatArray:
    """Return the max-min fair parts of the time of jobs of these kinds, alone and then in pairs."""
    is_in, speeds = speeds_of(np.array(kinds, dtype=np.int32), PAIRS)
    return max_min(gpu_count)([], is_in, speeds)


def test_the_next_job_joins_the_one_with_which_it_gains_most() -> None:
    choice = FirstCome(2, KINDS, PAIRS)
    assert choice(0.0, [1, 2, 0]) == [(2,), (1, 0)]  # 0.7 + 0.9 beside 0.8 + 0.8: equal, so the older one
    better = PAIRS + np.array([[0.0, 0.0, 0.1], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert FirstCome(2, KINDS, better)(0.0, [1, 2, 0]) == [(1,), (2, 0)]


def test_nobody_overtakes_a_job_that_joins_nobody() -> None:
    kinds = np.array([1, 2, 0], dtype=np.int32)  # the second cannot stand beside the first, the third could
    assert FirstCome(1, kinds, PAIRS)(0.0, [0, 1, 2]) == [(0,)]
    assert FirstCome(1, kinds, PAIRS)(0.0, [0, 2, 1]) == [(0, 2)]


def test_pairs_are_made_anew_when_a_gpu_is_free() -> None:
    choice = FirstCome(2, np.zeros(3, dtype=np.int32), np.array([[0.8]]))
    # The third joins the first until the second ends at 100 s; then both have 20 s left, alone.
    assert ends_s(2, [100, 100, 100], 0.8, choice) == pytest.approx([120.0, 100.0, 120.0])


def test_jobs_wait_for_the_next_round() -> None:
    choice = FirstCome(1, np.zeros(2, dtype=np.int32), np.array([[0.7]]))
    assert ends_s(1, [15, 15], 0.7, choice) == pytest.approx([15.0, 35.0])  # 1.4 together is too little


def test_the_slowest_job_is_as_fast_as_it_can_be() -> None:
    assert parts(1, 2) == pytest.approx([0.5, 0.5, 0.0])  # they cannot share
    assert parts(0, 2) == pytest.approx([0.0, 0.0, 1.0])  # 0.8 each together
    level, together = 0.9 / 1.2, 1 / 1.2  # of 0 and 1: together, but 1 is the slower one and has the rest alone
    assert parts(0, 1) == pytest.approx([0.0, 1 - together, together])
    assert 0.9 * together == pytest.approx(level)
    assert 0.7 * together + 1 - together == pytest.approx(level)
    assert parts(1, 2, gpu_count=2) == pytest.approx([1.0, 1.0, 0.0])


def test_rounds_keep_the_parts() -> None:
    choice = InParts(1, np.zeros(2, dtype=np.int32), np.array([[0.0]]), ROUND_S, max_min(1))
    assert ends_s(1, [40, 40], 0.0, choice) == pytest.approx([70.0, 80.0])  # by turns
    together = InParts(1, np.zeros(2, dtype=np.int32), np.array([[0.8]]), ROUND_S, max_min(1))
    assert ends_s(1, [40, 40], 0.8, together) == pytest.approx([50.0, 50.0])


def test_chance_pairs_jobs_where_they_are_more_than_gpus() -> None:
    rows = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    kinds = np.zeros(3, dtype=np.int32)
    divide = RandomPairs(1, 0)
    even = divide(rows, *speeds_of(kinds, np.array([[0.8]])))
    assert sorted(even.tolist()) == [0.0, 0.0, 0.0, 0.0, 0.5, 0.5]
    (pair,) = [row for row, part in zip(rows, even, strict=True) if part and len(row) == 2]
    again = divide(rows, *speeds_of(kinds, np.array([[0.8]])))
    assert again[rows.index(pair)] == 0.5  # they stay together
    assert RandomPairs(3, 0)(rows, *speeds_of(kinds, np.array([[0.8]]))).tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def test_a_pair_that_does_less_than_one_job_alone_parts() -> None:
    rows, speeds = [(0,), (1,), (0, 1)], speeds_of(np.zeros(2, dtype=np.int32), np.array([[0.4]]))
    divide = RandomPairs(1, 0)
    assert divide(rows, *speeds).tolist() == [0.0, 0.0, 1.0]  # chance does not look at throughputs
    three = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    pairs = {
        three[place]
        for _ in range(20)
        for place in np.flatnonzero(divide(three, *speeds_of(np.zeros(3, dtype=np.int32), np.array([[0.4]]))))
        if len(three[place]) == 2
    }
    assert len(pairs) > 1
