"""A report reads a day as one row where it is kept, and its runs else; each run counts once, where it ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from gpusage.reports import reading
from gpusage.reports.amounts import Rates
from gpusage.reports.reading import Accounting, Reader, no_accounting
from gpusage.reports.report import Period, Report, finished, report_of
from gpusage.store.decisions import DecisionStore
from gpusage.store.opening import open_store
from gpusage_hooks.types import Usage
from observed import DAY_S, NOW_S, fill, month, record, usage

PERIOD = Period(since_s=NOW_S - 5 * DAY_S, until_s=NOW_S)
FIRST_S = NOW_S // DAY_S * DAY_S - 2 * DAY_S


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        fill(store)
    return tmp_path


def opened(path: Path) -> DecisionStore:
    return open_store(f"sqlite:///{path}/d.db")


def read(path: Path, accounting: Accounting = no_accounting) -> Report:
    with closing(opened(path)) as store:
        reader = Reader(store=store, accounting=accounting)
        return finished(reader.read(PERIOD.since_s, PERIOD.until_s), None, Rates(), PERIOD)


def test_the_parts_of_a_period_have_each_run_and_decision_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_RUNS", 1)
    actual = read(path)
    expected = report_of([each.decision for each in month() if each.decision], [*month()], Rates(), PERIOD)
    assert actual.run_count == expected.run_count == actual.totals.job_count == 40
    assert [(each.name, each.job_count) for each in actual.groups["user"]] == [("ada", 26), ("bob", 14)]
    assert actual.hours.booked == pytest.approx(expected.hours.booked)
    assert actual.all_jobs.possible is not None
    assert expected.all_jobs.possible is not None
    assert actual.all_jobs.possible.freed_hours == pytest.approx(expected.all_jobs.possible.freed_hours)
    assert sum(each.count for each in actual.decisions) == 42


def test_a_kept_day_is_read_and_its_runs_are_not(path: Path) -> None:
    before = read(path)
    with closing(opened(path)) as store:
        part, _ = Reader(store=store).read_span(FIRST_S, FIRST_S + DAY_S)
        assert part.run_count
        store.claim_day(FIRST_S)
        store.record_day(FIRST_S, msgspec.json.encode(part), Reader(store=store).form)
    assert (read(path).run_count, read(path).hours.booked) == (40, pytest.approx(before.hours.booked))
    with closing(opened(path)) as store:
        many = msgspec.json.encode(msgspec.structs.replace(part, run_count=1000))
        store.record_day(FIRST_S, many, Reader(store=store).form)
    assert read(path).run_count == 1000 + 40 - part.run_count
    with closing(opened(path)) as store:
        store.record_day(FIRST_S, b'{"of": "another release"}', Reader(store=store).form)
    assert read(path) == before
    with closing(opened(path)) as store:
        store.record_day(FIRST_S, many, "other rules")
    assert read(path) == before


@pytest.mark.parametrize("offset_s", [-2.0, 2.0])
def test_a_run_that_ends_at_midnight_counts_once_where_clocks_differ(tmp_path: Path, offset_s: float) -> None:
    seen = usage(
        record(1, percent=None), number="", started_at_s=FIRST_S, ended_at_s=FIRST_S + DAY_S + offset_s, account=""
    )
    book = replace(seen, ended_at_s=FIRST_S + DAY_S - offset_s, account="books", sampled_s=0.0, gpu_utilization=None)

    def accounting(since_s: float, until_s: float) -> tuple[Sequence[Usage], tuple[str, ...]]:
        return [each for each in [book] if since_s <= each.ended_at_s <= until_s], ("",)

    with closing(opened(tmp_path)) as store:
        store.record_usage([seen])
        days = [
            Reader(store=store, accounting=accounting).read_span(at_s, at_s + DAY_S)[0]
            for at_s in (FIRST_S, FIRST_S + DAY_S)
        ]
    assert [day.run_count for day in days] == ([1, 0] if offset_s < 0 else [0, 1])
    assert [group.name for day in days for group in day.groups["account"]] == ["books"]


def test_quiet_days_are_asked_for_together_and_busy_ones_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = []

    def accounting(since_s: float, until_s: float) -> tuple[Sequence[Usage], tuple[str, ...]]:
        spans.append(round((until_s - since_s) / DAY_S))
        return (), ()

    with closing(opened(tmp_path)) as store:
        Reader(store=store, accounting=accounting).read(FIRST_S, FIRST_S + 10 * DAY_S)
        assert spans == [1, 2, 4, 3]
        spans.clear()
        monkeypatch.setattr(reading, "FEW_RUNS", 0)
        Reader(store=store, accounting=accounting).read(FIRST_S + 60, FIRST_S + 3 * DAY_S)
    assert spans == [1, 1, 1]
