"""What one run shows of a job: the busiest minute alone on a whole GPU, the memory, and that a share was too small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.experience.runs import Run, history_runs, run_of
from gpusage.store.rows import Observation
from gpusage_hooks.types import Allocation, Figure, Interval, ObservedFigures, Usage
from past_runs import ADA, GIB, V100
from records import RECORD, USAGE

WHOLE = replace(
    USAGE,
    granted=Allocation(),
    gpu=V100,
    alone_s=3595.0,
    gpu_utilization=0.1,
    peak_utilization=0.4,
    memory_bytes=4 * GIB,
)
HALF = replace(WHOLE, granted=Allocation(division="percentage", share_percent=50, memory_limit_bytes=6 * GIB))
ESTIMATE = ObservedFigures(gpu_utilization=Figure(interval=Interval(value=0.2, low=0.1, high=0.3), source=""))


def observed_run(usage: Usage) -> Run | None:
    record = replace(RECORD, identity=ADA, history_estimates={V100: ESTIMATE})
    runs = history_runs([Observation(usage=usage, decision=record)], 60.0)
    return next((run for _, run in runs), None)


def test_a_run_alone_on_a_whole_gpu_shows_its_busiest_minute_and_its_memory() -> None:
    run = observed_run(WHOLE)
    assert run is not None
    assert (run.peak_utilization, run.memory_bytes, run.identity) == (0.4, 4 * GIB, ADA)


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param(replace(WHOLE, peak_utilization=None), id="no minute was over, or an older node saw it"),
        pytest.param(replace(WHOLE, alone_s=1000.0), id="beside others"),
        pytest.param(replace(WHOLE, granted=Allocation(division="slice")), id="on a slice"),
        pytest.param(replace(HALF, peak_utilization=0.6), id="as busy on half a GPU as 30 % can be"),
    ],
)
def test_where_nothing_tells_of_its_utilization_the_memory_counts(usage: Usage) -> None:
    run = observed_run(usage)
    assert run is not None
    assert (run.peak_utilization, run.memory_bytes) == (None, 4 * GIB)


def test_a_job_that_is_busier_on_its_share_than_it_could_be_has_changed() -> None:
    """At 30 % of a GPU it is busy at most 60 % of half a one."""
    run = observed_run(replace(HALF, peak_utilization=0.61))
    assert run is not None
    assert run.peak_utilization == 1.0


def test_a_job_that_lacked_memory_needs_a_quarter_more_than_it_had() -> None:
    run = observed_run(replace(HALF, outcome="out_of_memory", sampled_s=5.0))
    assert run is not None
    assert (run.peak_utilization, run.required_bytes) == (None, 7.5 * GIB)


@pytest.mark.parametrize(
    "usage", [replace(WHOLE, outcome="failed"), replace(WHOLE, sampled_s=59.0), replace(WHOLE, gpu="")]
)
def test_a_run_that_came_to_nothing_shows_nothing(usage: Usage) -> None:
    assert observed_run(usage) is None
    assert run_of(WHOLE, RECORD, 60.0) is None  # nothing is known of its submission
