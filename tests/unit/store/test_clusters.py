"""A store is to be one cluster's: of two, jobs have equal numbers. Where two write, both go on, and that is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.store.decisions import DecisionStore
from gpusage.store.opening import open_store
from gpusage.store.rows import MIGRATIONS
from gpusage_hooks.units import DAY_S
from postgresql import Server
from records import RECORD, USAGE

STEPS = "gpusage.store.rows.MIGRATIONS"
MIXED = r"hold the jobs of one cluster, or figures mix several; got slurm 'alpha' and slurm 'beta' in the last 3 days"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where a store of each kind is; nothing is in it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/d.db"
    server: Server = request.getfixturevalue("server")
    return server.url


@pytest.fixture
def store(url: str) -> Iterator[DecisionStore]:
    """Yield a store that keeps rows for as long as the tests' rows need."""
    with closing(open_store(url, keep_days=1e6)) as opened:
        yield opened


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time of day for the store, which a test may change."""
    now_s = [1_700_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now_s[0])
    return now_s


def note(store: DecisionStore, name: str, manager: str = "slurm", gpu_count: int = 4) -> None:
    """Note a cluster today."""
    store.note_cluster(time.time() // DAY_S * DAY_S, manager, name, gpu_count)


def test_two_clusters_write_and_read_and_that_they_are_two_is_told(url: str, store: DecisionStore) -> None:
    note(store, "alpha")
    note(store, "alpha")  # its backup controller
    assert store.mixed_clusters() == ""
    with closing(open_store(url)) as other:
        note(other, "beta")
        other.record_usage([USAGE])
        other.record(replace(RECORD, number=USAGE.number))
    assert MIXED in store.mixed_clusters()
    assert store.mixed_clusters().endswith("Give each cluster a database or file of its own in [store] url.")
    assert [(each.usage, each.decision is not None) for each in store.usage()] == [(USAGE, True)]


@pytest.mark.parametrize(("manager", "name"), [("yarn", "rm.site"), ("slurm", ""), ("slurm", "alpha")])
def test_one_site_s_slurm_and_yarn_may_share_a_store_and_no_name_is_another(
    store: DecisionStore, manager: str, name: str
) -> None:
    """One gpusaged serves both managers, and their jobs are told apart by them."""
    note(store, "alpha")
    note(store, name, manager)
    assert store.mixed_clusters() == ""


def test_an_old_name_soon_counts_no_more(store: DecisionStore, clock: list[float]) -> None:
    note(store, "alpha")
    for _ in range(2):
        clock[0] += DAY_S
        note(store, "beta")
        assert MIXED in store.mixed_clusters()
    clock[0] += DAY_S
    assert store.mixed_clusters() == ""
    note(store, "alpha")  # it was no renaming
    assert MIXED in store.mixed_clusters()


def test_gpus_of_several_clusters_are_together_a_day_s_and_are_kept_as_long_as_the_rest(
    url: str, clock: list[float]
) -> None:
    with closing(open_store(url, keep_days=2.0)) as short:
        for _ in range(3):
            for name, manager, gpu_count in (("alpha", "slurm", 8), ("alpha", "slurm", 6), ("rm.site", "yarn", 4)):
                note(short, name, manager, gpu_count)
            clock[0] += DAY_S
        today_s = (clock[0] - DAY_S) // DAY_S * DAY_S
        assert short.gpu_counts(0.0, clock[0]) == {today_s: 12, today_s - DAY_S: 12}


def test_without_a_store_nothing_is_mixed_and_no_file_is_made(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as reader:
        assert reader.mixed_clusters() == ""
    assert not (tmp_path / "d.db").exists()


def test_a_store_of_before_can_be_noted_in(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STEPS, MIGRATIONS[:2])
    with closing(open_store(url)) as older:
        older.record_usage([USAGE])
    monkeypatch.undo()
    with closing(open_store(url)) as newer:
        note(newer, "alpha")
        note(newer, "beta")
        assert MIXED in newer.mixed_clusters()
        assert [each.usage for each in newer.usage()] == [USAGE]
