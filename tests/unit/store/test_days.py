"""The days of a store: kept until one of their runs is recorded, and read in parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.store import decisions
from gpusage.store.decisions import DecisionStore
from gpusage.store.opening import open_store
from gpusage_hooks.units import DAY_S
from postgresql import Server
from records import RECORD, USAGE

TODAY_S = USAGE.ended_at_s // DAY_S * DAY_S


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DecisionStore]:
    """Return an empty store of each kind."""
    url = f"sqlite:///{tmp_path}/d.db"
    if request.param == "postgresql":
        server: Server = request.getfixturevalue("server")
        url = server.url
    with closing(open_store(url)) as opened:
        yield opened


def test_a_day_stays_until_a_run_of_it_is_recorded(store: DecisionStore) -> None:
    assert store.missing_days(TODAY_S + DAY_S) == []
    store.record_usage([replace(USAGE, job_id="6", ended_at_s=TODAY_S - 1), USAGE])
    assert store.missing_days(TODAY_S + 2 * DAY_S) == [TODAY_S - DAY_S, TODAY_S, TODAY_S + DAY_S]
    for text in (b'{"a":1}', b'{"b":"2"}'):
        store.claim_day(TODAY_S)
        assert store.day(TODAY_S) is None
        store.record_day(TODAY_S, text)
        assert store.day(TODAY_S) == text
    store.record_usage([replace(USAGE, job_id="8", ended_at_s=TODAY_S - 1)])
    assert store.missing_days(TODAY_S + DAY_S) == [TODAY_S - DAY_S]
    store.record_usage([replace(USAGE, job_id="9")])
    assert store.day(TODAY_S) is None


def test_a_clock_that_stands_at_1970_makes_no_other_days_missing(store: DecisionStore) -> None:
    store.record_usage([replace(USAGE, job_id="6", ended_at_s=TODAY_S - 1)])
    store.record_usage([replace(USAGE, job_id="7", started_at_s=0.0, ended_at_s=60.0)])
    assert store.missing_days(TODAY_S + DAY_S) == [TODAY_S - DAY_S, TODAY_S]


@pytest.mark.parametrize("first_s", [60.0, TODAY_S + 3650 * DAY_S])
def test_a_first_run_of_a_wrong_clock_neither_hides_the_days_nor_makes_thousands_of_them(
    store: DecisionStore, first_s: float
) -> None:
    store.record_usage([replace(USAGE, job_id="6", started_at_s=0.0, ended_at_s=first_s)])
    store.record_usage([replace(USAGE, job_id="7", ended_at_s=TODAY_S - 1)])
    assert store.missing_days(TODAY_S + DAY_S) == [TODAY_S - DAY_S, TODAY_S]


def test_the_most_gpus_of_a_day_stay_noted_whatever_becomes_of_its_report(store: DecisionStore) -> None:
    for day_s, gpu_count in ((TODAY_S, 14), (TODAY_S, 7), (TODAY_S + DAY_S, 7), (TODAY_S + DAY_S, 8)):
        store.note_cluster(day_s, "slurm", "alpha", gpu_count)
    store.record_usage([USAGE])
    assert store.gpu_counts(TODAY_S + 1, TODAY_S + DAY_S) == {TODAY_S: 14}
    assert store.gpu_counts(TODAY_S + DAY_S, TODAY_S + DAY_S + 1) == {TODAY_S + DAY_S: 8}


def test_a_run_that_is_recorded_while_its_day_is_added_up_leaves_the_day_missing(store: DecisionStore) -> None:
    store.record_usage([USAGE])
    store.claim_day(TODAY_S)
    store.record_usage([replace(USAGE, job_id="late")])
    store.record_day(TODAY_S, b"{}")
    assert store.missing_days(TODAY_S + DAY_S) == [TODAY_S]


def test_a_run_whose_end_moves_over_midnight_makes_both_days_be_added_up_again(store: DecisionStore) -> None:
    """The monitor of jobs took it for ended before its node told its last second."""
    store.record_usage([replace(USAGE, ended_at_s=TODAY_S - 1)])
    for day_s in (TODAY_S - DAY_S, TODAY_S):
        store.claim_day(day_s)
        store.record_day(day_s, b"{}")
    store.record_usage([replace(USAGE, ended_at_s=TODAY_S + 1)])
    assert store.day(TODAY_S - DAY_S) is store.day(TODAY_S) is None


def test_a_day_of_another_form_is_missing(store: DecisionStore) -> None:
    store.record_usage([USAGE])
    store.claim_day(TODAY_S)
    store.record_day(TODAY_S, b"{}", "one")
    assert (store.day(TODAY_S, "one"), store.day(TODAY_S, "other")) == (b"{}", None)
    assert (store.missing_days(TODAY_S + DAY_S, "one"), store.missing_days(TODAY_S + DAY_S, "other")) == ([], [TODAY_S])


def test_runs_and_decisions_are_found_by_when_they_were(store: DecisionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "CHUNK_ROWS", 2)
    ends = [replace(USAGE, job_id=str(n // 2), number=f"{n}", user=f"u{n}", ended_at_s=float(n)) for n in range(6)]
    store.record_usage(ends)
    jobs = store.runs_between(1.0, 5.0)
    assert {job_id: len(rows) for (_, job_id), rows in jobs.items()} == {"0": 1, "1": 2, "2": 1}
    assert [[*rows] for rows in store.runs_between(0.0, 9.0, "u3").values()] == [[jobs["slurm", "1"][1]]]

    store.record_all([replace(RECORD, number=f"{n}", decided_at_s=float(n)) for n in range(6)])
    numbers = [sorted(record.number for record in chunk) for chunk in store.between(1.0, 4.0)]
    assert numbers == [["1", "2"], ["3"]]
    assert [*store.between(1.0, 4.0, ["nobody"])] == []
