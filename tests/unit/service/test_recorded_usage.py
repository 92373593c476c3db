"""What two tell of one run is one row, whoever is first."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpusage.service.recorder import record_usage
from gpusage.store.opening import open_store
from gpusage_hooks.types import Allocation, GpuRequest, Outcome, Usage
from records import RECORD, USAGE

SAMPLED = replace(USAGE, outcome="failed", started_at_s=999.7, ended_at_s=1061.4, sampled_s=60.0, memory_bytes=5)
"""By the clock of the node, from its prolog to its epilog; slurmctld counts whole seconds."""
STARVED = replace(
    SAMPLED,
    outcome="out_of_memory",
    gpu="",
    granted=Allocation(),
    started_at_s=1000.0,
    ended_at_s=1061.0,
    sampled_s=0.0,
    memory_bytes=None,
)
SECOND_RUN = replace(SAMPLED, outcome="completed", started_at_s=1064.2, ended_at_s=1200.0)


def stored_usages(folder: Path, *usages: Usage) -> tuple[list[Usage], list[Usage]]:
    """Return what the store has after all *usages*, newest first, and what plugins heard."""
    observed_usages: list[Usage] = []
    with closing(open_store(f"sqlite:///{folder}/d.db")) as store:
        for usage in usages:
            record_usage([usage], store, SimpleNamespace(usage_observed=observed_usages.append))  # type: ignore[arg-type] - hooks
        return [observed.usage for observed in store.usage()], observed_usages


@pytest.mark.parametrize("outcome", ["failed", "completed", "interrupted"])
def test_a_run_that_failed_with_its_cap_filled_may_have_failed_for_another_reason(
    tmp_path: Path, outcome: Outcome
) -> None:
    """An allocator that keeps what it frees fills every cap, and a wrong file name ends the job an hour later."""
    filled = replace(SAMPLED, outcome=outcome, memory_bytes=960, granted=Allocation(memory_limit_bytes=1000))
    rows, observed_usages = stored_usages(tmp_path, filled)
    assert [row.outcome for row in rows] == [row.outcome for row in observed_usages] == [outcome]


@pytest.mark.parametrize(
    "usages",
    [
        (SAMPLED, STARVED),
        (STARVED, SAMPLED),
        (STARVED, SAMPLED, SAMPLED),  # a daemon that was started anew is told again
        (SAMPLED, STARVED, SAMPLED, STARVED),
        (STARVED, replace(SAMPLED, sampled_on="n1"), replace(SAMPLED, sampled_on="n1")),
    ],
)
def test_a_run_that_starved_is_one_row_with_its_figures(tmp_path: Path, usages: tuple[Usage, ...]) -> None:
    rows, observed_usages = stored_usages(tmp_path, *usages)
    (row,) = rows
    assert (row.outcome, row.memory_bytes, row.granted.share_percent) == ("out_of_memory", 5, 40)
    assert observed_usages[-1] == row


def test_a_run_on_a_whole_gpu_that_its_manager_reports_first_is_one_row(tmp_path: Path) -> None:
    sampled = replace(SAMPLED, granted=Allocation(), gpu_count=1, sampled_on="n1")
    assert len(stored_usages(tmp_path, STARVED, sampled, sampled)[0]) == 1


def test_a_run_that_starved_unseen_had_the_share_that_was_decided(tmp_path: Path) -> None:
    """A whole GPU was booked for it in reports; ten seconds on 40 % are what it had."""
    shared = replace(RECORD.decision, request=GpuRequest(gpu_count=0, mps_thread_percent=40))
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        store.record(replace(RECORD, number=STARVED.number, mode="enforce", decision=shared))
    ((row,), _), (done, _) = (
        stored_usages(tmp_path, STARVED, STARVED),
        stored_usages(tmp_path, replace(SECOND_RUN, sampled_s=0.0)),
    )
    assert (row.granted.share_percent, done[0].granted) == (40, SECOND_RUN.granted)


def test_a_run_that_starved_unseen_on_a_slice_had_the_memory_of_the_slice(tmp_path: Path) -> None:
    sliced = replace(RECORD.decision, request=GpuRequest(gpu_count=1, slice_type="3g.20gb", memory_cap_bytes=20 << 30))
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        store.record(replace(RECORD, number=STARVED.number, mode="enforce", decision=sliced))
    (row,), _ = stored_usages(tmp_path, STARVED)
    assert (row.granted.division, row.granted.memory_limit_bytes) == ("slice", 20 << 30)


def test_the_next_run_of_the_job_is_a_row_of_its_own(tmp_path: Path) -> None:
    rows, _ = stored_usages(tmp_path, STARVED, SECOND_RUN, SAMPLED)
    assert [(row.outcome, row.ended_at_s) for row in rows] == [("completed", 1200.0), ("out_of_memory", 1061.4)]


def test_a_job_that_died_at_once_is_one_row(tmp_path: Path) -> None:
    """It began and ended within one second, and its sampler was a little late."""
    starved = replace(STARVED, ended_at_s=1000.0)
    sampled = replace(SAMPLED, started_at_s=1000.3, ended_at_s=1000.9)
    assert len(stored_usages(tmp_path, starved, sampled)[0]) == 1


def test_each_node_of_a_run_on_whole_gpus_has_its_own_row_however_often_it_reports(tmp_path: Path) -> None:
    whole = replace(
        SAMPLED, outcome="completed", granted=Allocation(), gpu_count=4, gpu_utilization=0.9, sampled_on="n1"
    )
    idle = replace(whole, started_at_s=999.9, gpu_utilization=0.0, sampled_on="n2")
    rows, _ = stored_usages(tmp_path, whole, idle, whole, idle)
    assert sorted((row.started_at_s, row.gpu_utilization) for row in rows) == [(999.7, 0.9), (999.9, 0.0)]
