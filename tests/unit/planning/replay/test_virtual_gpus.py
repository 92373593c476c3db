"""Virtual GPUs: work is conserved whoever comes and goes, and memory that is too small ends a job."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulated import emulated
from gpusage_hooks.units import MIB
from gpusage_planning.replay.virtual_gpus import Seat
from gpusage_planning.simulator.engine import OUT_OF_MEMORY_S


def seat(gpu_type: int = 0, cap: float = inf) -> Seat:
    return Seat(node="n", gpu_type=gpu_type, device=0, memory_cap_bytes=cap)


def test_a_job_is_slower_while_another_stands_beside_it() -> None:
    """Alone for 10 s, then 80 s of both at half speed, in which the second does its 40; then alone for 50."""
    here = emulated(100.0, 40.0)
    here.arrive(0, seat(), 0.0)
    here.arrive(1, seat(), 10.0)
    assert here.next_end() == (pytest.approx(90.0), 1)
    assert here.leave(1, 90.0) == "done"
    assert here.next_end() == (pytest.approx(140.0), 0)
    here.leave(0, 140.0)
    assert here.busy_s == pytest.approx(70.0)
    assert [(stay.job, stay.start_s, stay.end_s) for stay in here.stays] == [(1, 10.0, 90.0), (0, 0.0, 140.0)]


def test_a_faster_gpu_does_the_work_in_half_the_time() -> None:
    here = emulated(100.0)
    here.arrive(0, seat(gpu_type=1), 5.0)
    assert here.next_end() == (pytest.approx(55.0), 0)


@pytest.mark.parametrize(("kinds", "cap"), [([0, 0], MIB / 2), ([1, 1], inf)])
def test_too_little_memory_ends_the_newcomer(kinds: Sequence[int], cap: float) -> None:
    """Its own cap is too small, or the two together are too large for the GPU."""
    here = emulated(100.0, 100.0, kinds=kinds)
    here.arrive(0, seat(), 0.0)
    here.arrive(1, seat(cap=cap), 10.0)
    assert here.next_end() == (10.0 + OUT_OF_MEMORY_S, 1)
    assert here.leave(1, 10.0 + OUT_OF_MEMORY_S) == "out_of_memory"


def test_a_job_that_was_ended_is_gone() -> None:
    here = emulated(100.0)
    here.arrive(0, seat(), 0.0)
    assert here.leave(0, 10.0, is_gone=True) == "gone"
    assert here.next_end() == (inf, -1)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(1, 100)), min_size=1, max_size=6))
def test_jobs_on_one_gpu_take_as_long_together_as_one_after_the_other(jobs: list[tuple[float, float]]) -> None:
    """The halves add up to one GPU, so that its time with jobs is the sum of their work."""
    here = emulated(*(work_s for _, work_s in jobs))
    for job, (at_s, _) in sorted(enumerate(jobs), key=lambda one: one[1][0]):
        while here.next_end()[0] <= at_s:
            end_s, first = here.next_end()
            here.leave(first, end_s)
        here.arrive(job, seat(), at_s)
    while here.next_end()[1] >= 0:
        end_s, first = here.next_end()
        here.leave(first, end_s)
    assert 2 * here.busy_s == pytest.approx(sum(work_s for _, work_s in jobs))
