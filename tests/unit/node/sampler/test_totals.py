"""What the samples of a job's GPUs add up to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.node.sampler.processes import Consumption
from gpusage.node.sampler.sampling import Sample, Totals, add_sample, job_memory_bytes
from gpusage_hooks.types import GpuReading


def sample(at_s: float, *readings: GpuReading, memory_bytes: int | None = None, jobs: int = 1) -> Sample:
    return Sample(at_s=at_s, readings=readings, memory_bytes=memory_bytes, job_count=jobs)


def reading(**known: float) -> GpuReading:
    return GpuReading(name="V100", **known)  # type: ignore[arg-type]


def summed(samples: Sequence[Sample]) -> Totals:
    totals = Totals()
    for before, now in itertools.pairwise(samples):
        totals = add_sample(totals, before, now)
    return totals


def test_a_share_is_a_mean_over_the_time_in_which_it_was_known() -> None:
    """10 s at 0.2, 30 s at 0.6, then 20 s without a counter: 20 / 40."""
    totals = summed(
        [
            sample(0),
            sample(10, reading(gpu_utilization=0.2)),
            sample(40, reading(gpu_utilization=0.6)),
            sample(60, reading()),
        ]
    )
    assert totals.mean("gpu_utilization") == pytest.approx(0.5)
    assert totals.mean("sm_activity") is None
    assert totals.sampled_s == 60


def test_the_busiest_minute_is_found_once_one_is_over() -> None:
    """A minute at 20 %, one at 90 %, and half of one at 100 %, which is no minute."""
    shares = [0.0, *[0.2] * 6, *[0.9] * 6, *[1.0] * 3]
    samples = [sample(10.0 * number, reading(gpu_utilization=share)) for number, share in enumerate(shares)]
    peaks = [summed(samples[: count + 2]).peak_utilization for count in range(len(samples) - 1)]
    assert peaks[4] is None
    assert peaks[5] == pytest.approx(0.2)
    assert peaks[-1] == pytest.approx(0.9)


def test_the_longest_time_in_which_a_job_did_nothing_is_found_in_its_middle() -> None:
    """Two busy minutes, twenty idle ones with a burst of reading in the 13th, one of computing, and five idle ones."""
    totals, at_s, cpu_s, read_bytes = Totals(), 0.0, 0.0, 0
    before, longest_s = sample(0), []
    for minute in range(28):
        is_busy = minute < 2 or minute == 22
        cpu_s += 60.0 if is_busy else 0.5
        read_bytes += 2**30 if minute == 15 else 0
        for _ in range(6):
            at_s += 10.0
            used = Consumption(cpu_s=cpu_s, read_bytes=read_bytes)
            now = replace(sample(at_s, reading(gpu_utilization=float(minute < 2))), used=used)
            totals, before = add_sample(totals, before, now), now
        longest_s.append(totals.longest_idle_s)
    assert longest_s[2] == 60.0
    assert longest_s[14] == longest_s[-1] == 13 * 60.0
    assert totals.idle_s == 5 * 60.0


def test_where_the_host_s_counters_are_unknown_nobody_knows_whether_a_job_is_idle() -> None:
    samples = [sample(10.0 * number, reading(gpu_utilization=0.0)) for number in range(7)]
    assert summed(samples).longest_idle_s is None
    known = [replace(each, used=Consumption(cpu_s=0.0, read_bytes=0)) for each in samples]
    assert (summed(known).longest_idle_s, summed(known[:6]).longest_idle_s) == (60.0, None)


def test_two_gpus_have_one_mean_and_the_sum_of_their_energy() -> None:
    totals = summed(
        [
            sample(0, reading(energy_j=5.0), reading(energy_j=100.0)),
            sample(10, reading(energy_j=15.0, gpu_utilization=0.2), reading(energy_j=130.0, gpu_utilization=0.4)),
        ]
    )
    assert totals.mean("gpu_utilization") == pytest.approx(0.3)
    assert totals.energy_j == 40


def test_a_counter_that_begins_anew_costs_that_look_alone() -> None:
    """The driver was reloaded between the second and the third look."""
    totals = summed([sample(at_s, reading(energy_j=energy_j)) for at_s, energy_j in ((0, 10), (1, 15), (2, 1), (3, 4))])
    assert totals.energy_j == 8


def test_time_with_others_at_either_end_is_not_alone() -> None:
    samples = [sample(0), sample(10), sample(20, jobs=4), sample(30), sample(45)]
    assert (summed(samples).alone_s, summed(samples).sampled_s) == (25, 45)


def test_each_of_four_jobs_on_a_gpu_keeps_a_quarter_of_it() -> None:
    samples = [sample(0), sample(10), sample(20, jobs=2), sample(30, jobs=4), sample(50, jobs=4)]
    assert summed(samples).held_s == 10 + 10 / 2 + 10 / 4 + 20 / 4


def test_memory_is_the_peak_of_the_own_processes_on_the_fullest_gpu() -> None:
    first = GpuReading(name="V100", process_memory_bytes={1: 5, 2: 7, 9: 100})
    second = GpuReading(name="V100", process_memory_bytes={1: 20, 3: None})
    assert job_memory_bytes([first, second], {1, 2, 3}) == 20
    assert job_memory_bytes([first], {4}) is None
    assert job_memory_bytes([second], {3}) is None
    peaks = [sample(0), sample(1, memory_bytes=7), sample(2, memory_bytes=9), sample(3, memory_bytes=2), sample(4)]
    assert summed(peaks).memory_bytes == 9


SHARE = st.none() | st.floats(0, 1)
SAMPLES = st.builds(
    lambda share, energy_j, jobs: (GpuReading(name="g", gpu_utilization=share, energy_j=energy_j), jobs),
    SHARE,
    st.none() | st.floats(0, 1e9),
    st.integers(1, 5),
)


@given(samples=st.lists(SAMPLES, max_size=12), pause_s=st.floats(0.01, 100))
def test_any_looks_add_up_to_possible_figures(samples: list[tuple[GpuReading, int]], pause_s: float) -> None:
    totals = summed([sample(pause_s * place, seen, jobs=jobs) for place, (seen, jobs) in enumerate(samples)])
    assert 0 <= totals.alone_s <= totals.held_s + 1e-6 <= totals.sampled_s + 2e-6
    share = totals.mean("gpu_utilization")
    assert share is None or 0 <= share <= 1
    assert totals.energy_j is None or totals.energy_j >= 0
