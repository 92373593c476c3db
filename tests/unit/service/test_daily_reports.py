"""gpusaged adds each day up once its runs are known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.reports.reading import Reader, rules_of
from gpusage.service import daily_reports
from gpusage.service.daily_reports import DailyReports
from gpusage.service.learner import LEAST_DECISIONS
from gpusage.settings.configuration import Configuration
from gpusage.store.decisions import DecisionStore
from gpusage.store.opening import open_store
from gpusage_hooks.types import Usage
from gpusage_hooks.units import DAY_S, HOUR_S
from observed import GIB, record, usage
from records import USAGE

NOW_S = 1_700_000_000 // DAY_S * DAY_S + 7 * HOUR_S
FORM = Reader(store=None, rules=rules_of(Configuration(), builtin_catalogue())).form  # type: ignore[arg-type]
DAYS = [NOW_S // DAY_S * DAY_S - count * DAY_S for count in (4, 3, 2, 1)]


def store_at(path: Path) -> DecisionStore:
    return open_store(f"sqlite:///{path}/d.db")


def task_at(path: Path) -> DailyReports:
    snapshot = SimpleNamespace(advisor=SimpleNamespace(catalogue=builtin_catalogue()), configuration=Configuration())
    return DailyReports(SimpleNamespace(snapshot=snapshot), partial(store_at, path))  # type: ignore[arg-type]


def stored_days(path: Path, monkeypatch: pytest.MonkeyPatch, now_s: float, troubles: Sequence[str] = ()) -> list[float]:
    """Return which of `DAYS` have a report after one run at *now_s*."""

    def accounting(_: float, __: float, ___: object) -> tuple[Sequence[Usage], tuple[str, ...]]:
        return (), tuple(troubles)

    monkeypatch.setattr(daily_reports, "read_accounting", accounting)
    monkeypatch.setattr(daily_reports, "REST_S", 0.0)
    monkeypatch.setattr(time, "time", lambda: now_s)
    task = task_at(path)
    task.run_once()
    assert task.error is None
    with closing(store_at(path)) as store:
        return [day_s for day_s in DAYS if store.day(day_s, FORM)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(store_at(tmp_path)) as store:
        store.record_usage([replace(USAGE, job_id=f"{day_s}", ended_at_s=day_s + HOUR_S) for day_s in DAYS[::3]])
    return tmp_path


def test_a_day_is_added_up_six_hours_after_its_end_and_again_after_a_late_run(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stored_days(path, monkeypatch, NOW_S - 2 * HOUR_S) == DAYS[:3]
    assert stored_days(path, monkeypatch, NOW_S) == DAYS
    with closing(store_at(path)) as store:
        store.record_usage([replace(USAGE, job_id="late", ended_at_s=DAYS[1])])
        assert store.day(DAYS[1], FORM) is None
    assert stored_days(path, monkeypatch, NOW_S) == DAYS
    with closing(store_at(path)) as store:
        assert '"run_count":1,' in (store.day(DAYS[1], FORM) or b"").decode()


def test_a_day_keeps_the_gpus_of_its_clusters_without_accounting_and_after_a_late_run(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Thursday, when the day is not over, and once its accounting was waited for in vain."""
    with closing(store_at(path)) as store:
        store.note_cluster(DAYS[3], "slurm", "alpha", 14)
    stored_days(path, monkeypatch, DAYS[3] + HOUR_S, troubles=["no slurmdbd"])
    assert stored_days(path, monkeypatch, DAYS[3] + 5 * DAY_S, troubles=["no slurmdbd"]) == DAYS
    with closing(store_at(path)) as store:
        store.record_usage([replace(USAGE, job_id="late", ended_at_s=DAYS[3] + 1)])
        part = Reader(store=store, rules=rules_of(Configuration(), builtin_catalogue())).read(DAYS[0], DAYS[3] + DAY_S)
    assert part.day_gpu_counts == {f"{DAYS[3]:.0f}": 14}


def test_a_day_knows_the_smallest_shares_before_the_learner_has_read_the_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that needs three quarters could have shared only beside a quarter, and nobody had less than a whole GPU."""
    whole = [replace(record(number, percent=None), decided_at_s=NOW_S) for number in range(LEAST_DECISIONS)]
    run = usage(record(99, percent=None), gpu_utilization=0.1, peak_utilization=0.2, memory_bytes=9 * GIB)
    with closing(store_at(path)) as store:
        store.record_usage([replace(run, number="", gpu_count=1, started_at_s=DAYS[1], ended_at_s=DAYS[1] + HOUR_S)])

    def could_share() -> bool:
        stored_days(path, monkeypatch, NOW_S)
        with closing(store_at(path)) as store:
            day = Reader(store=store).read_day(DAYS[1], FORM)
            store.record_usage([replace(USAGE, job_id="late", ended_at_s=DAYS[1])])
        return day is not None and day.all_jobs.possible is not None

    assert could_share()
    with closing(store_at(path)) as store:
        store.record_all(whole)
    assert not could_share()


def test_accounting_that_does_not_answer_is_waited_for_three_days(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stored_days(path, monkeypatch, NOW_S, troubles=["slurmdbd is away"]) == DAYS[:2]
    with closing(store_at(path)) as store:
        assert "slurmdbd is away" in (store.day(DAYS[0], FORM) or b"").decode()


def test_a_day_that_cannot_be_added_up_keeps_no_other_from_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def accounting(since_s: float, _: float, __: object) -> tuple[Sequence[Usage], tuple[str, ...]]:
        if since_s < DAYS[1] <= since_s + DAY_S:
            message = "a row that nobody can read"
            raise ValueError(message)
        return (), ()

    monkeypatch.setattr(daily_reports, "REST_S", 0.0)
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    monkeypatch.setattr(daily_reports, "read_accounting", accounting)
    task = task_at(path)
    task.run_once()
    assert "nobody can read" in str(task.error)
    with closing(store_at(path)) as store:
        assert [day_s for day_s in DAYS if store.day(day_s, FORM)] == [DAYS[0], *DAYS[2:]]
