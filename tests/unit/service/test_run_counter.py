"""Runs and promises are counted once, whatever a daemon hears again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.service.usage_collector import RunCounters, count_runs, is_new
from gpusage.store.decisions import DecisionStore
from gpusage.store.opening import open_store
from gpusage_hooks.types import Usage
from observed import HALF, record, usage

SHARED = record(1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DecisionStore]:
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as opened:
        opened.record(SHARED)
        yield opened


def end_runs(store: DecisionStore, tally: RunCounters, *usages: Usage) -> None:
    """Do as the thread does that collects usage."""
    new = [usage for usage in usages if is_new(store, usage)]
    store.record_usage(usages)
    count_runs(tally, store, new, 60.0)


def test_a_run_that_the_store_has_is_not_counted_again(store: DecisionStore) -> None:
    """A daemon that was started again hears of the same runs, because nodes keep their letters."""
    tally, again = RunCounters(), RunCounters()
    done = usage(SHARED, granted=HALF)
    end_runs(store, tally, done)
    end_runs(store, again, done)
    assert (dict(tally.runs), dict(again.runs)) == ({("slurm", "completed"): 1}, {})
    # as in test_amounts: 1.6 h asked, 1 h booked
    assert (tally.hours["v100-sxm2-16gb"].requested, tally.hours["v100-sxm2-16gb"].booked) == (1.6, 1.0)


def test_idle_runs_are_counted_with_their_gpu_hours(store: DecisionStore) -> None:
    """Each run has an id of its own; 20 min, 3 h, and 10 min that count as nothing."""
    tally = RunCounters()
    assert (tally.idle.job_counts, tally.idle.hours) == ({"900": 0, "7200": 0}, {"900": 0, "7200": 0})
    runs = [usage(record(number), longest_idle_s=60.0 * minutes) for number, minutes in ((1, 20), (2, 180), (3, 10))]
    end_runs(store, tally, *runs)
    assert tally.idle.job_counts == {"900": 2, "7200": 1}
    assert tally.idle.hours == {"900": pytest.approx(200 / 60), "7200": pytest.approx(3.0)}


def test_a_run_that_rescue_told_of_first_is_counted_when_its_usage_comes(store: DecisionStore) -> None:
    tally, done = RunCounters(), usage(SHARED, granted=HALF)
    store.record_usage([replace(done, sampled_s=0.0, outcome="out_of_memory")])
    end_runs(store, tally, done)
    assert sum(tally.runs.values()) == 1


@pytest.mark.parametrize(
    ("figures", "result"),
    [
        ({"gpu_utilization": 0.5}, "fulfilled"),
        ({"outcome": "out_of_memory"}, "broken"),
        ({"gpu_utilization": None}, "unknown"),
    ],
)
def test_the_promise_to_a_share_is_counted_by_what_its_run_shows(
    store: DecisionStore, figures: dict[str, object], result: str
) -> None:
    tally = RunCounters()
    end_runs(store, tally, usage(SHARED, granted=HALF, **figures))
    assert dict(tally.promises) == {result: 1}


def test_a_whole_gpu_has_no_promise(store: DecisionStore) -> None:
    tally = RunCounters()
    end_runs(store, tally, usage(SHARED))
    assert dict(tally.promises) == {}


def test_what_may_come_begins_at_nothing() -> None:
    """Prometheus sees no increase in the first value of a series."""
    tally = RunCounters()
    tally.expect("slurm", ["t4"])
    assert set(tally.runs.values()) == {0}
    assert tally.hours["t4"].booked == 0.0
