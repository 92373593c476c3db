"""What a job's usage tells after it has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.experience.finished_jobs import describe_waiting, suggest_next_request
from gpusage_hooks.types import Allocation, SoloRun, Workload
from records import RECORD, USAGE

ALONE = replace(USAGE, granted=Allocation(), alone_s=3600.0, cpu_s=1440.0)
"""An hour alone on a whole GPU, with 20 % of two processors and 300 GB read."""


def test_a_host_bound_job_is_called_one_with_what_a_faster_gpu_would_gain() -> None:
    """Half of 4 % of the time is 2 %; 3e11 bytes in an hour are 79 MiB/s."""
    assert describe_waiting(replace(ALONE, gpu_utilization=0.04)) == (
        "waits for its loader (its processors are 20 % busy, it reads 79 MiB/s); "
        "a GPU 2 times as fast would save at most 2 % of its time"
    )


def test_busy_processors_are_named() -> None:
    """7100 of 7200 s of two processors."""
    assert describe_waiting(USAGE).startswith("waits for its processors, which are 99 % busy")
    assert suggest_next_request(replace(USAGE, granted=Allocation(), alone_s=3595.0), None) == (
        "more processors and a line that names its model"
    )


@pytest.mark.parametrize("unsure", [{"sampled_s": 59.0}, {"gpu_utilization": None}])
def test_no_data_is_never_wasteful(unsure: dict[str, float | None]) -> None:
    seen = replace(ALONE, gpu_utilization=0.0)
    assert describe_waiting(replace(seen, **unsure)) == ""  # type: ignore[arg-type]
    assert suggest_next_request(replace(seen, **unsure), None) == ""  # type: ignore[arg-type]


def test_what_is_not_known_of_the_host_is_left_out() -> None:
    assert describe_waiting(replace(ALONE, cpu_s=None, read_bytes=None)).startswith("waits for its loader; a GPU")


def test_a_busy_gpu_is_waited_for_by_nobody() -> None:
    assert describe_waiting(replace(ALONE, gpu_utilization=0.9)) == ""


def test_what_was_measured_alone_is_what_to_say_next_time() -> None:
    """Only where the job had all of the GPU, for itself, and did not say it already."""
    busy = replace(ALONE, gpu_utilization=0.9)
    assert suggest_next_request(busy, RECORD) == "utilization=90@64 in the comment"
    assert suggest_next_request(busy, replace(RECORD, workload=None)) == "utilization=90 in the comment"
    seen_at_32 = Workload(batch_size=64, alone=SoloRun(utilization=0.8, batch_size=32))
    assert suggest_next_request(busy, replace(RECORD, workload=seen_at_32)) == "utilization=90@64 in the comment"
    estimate = replace(RECORD, workload=Workload(alone=SoloRun(utilization=0.9)))
    assert suggest_next_request(busy, estimate) == "the same"
    assert suggest_next_request(replace(busy, alone_s=0.0), RECORD) == "the same"
    assert (
        suggest_next_request(replace(busy, alone_s=0.85 * busy.sampled_s), RECORD) == "the same"
    )  # the reports' limit
    assert suggest_next_request(replace(busy, granted=Allocation(share_percent=40)), RECORD) == "the same"


def test_a_job_that_used_no_gpu_and_one_that_died_of_its_share_are_told_so() -> None:
    assert suggest_next_request(replace(ALONE, gpu_utilization=0.001), None) == "no GPU: it hardly used one"
    assert suggest_next_request(replace(ALONE, outcome="out_of_memory"), None) == "a whole GPU"
