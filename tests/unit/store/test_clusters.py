"""One store is one cluster's: jobs of two have equal numbers, and their partitions equal names."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.store.decisions import DecisionStore, OtherClusterError
from gpusage.store.opening import open_store
from gpusage.store.rows import MIGRATIONS
from postgresql import Server
from records import RECORD, USAGE

ALPHA, BETA = {"slurm": "alpha"}, {"slurm": "beta"}
STEPS = "gpusage.store.rows.MIGRATIONS"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where a store of each kind is; nothing is in it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/d.db"
    server: Server = request.getfixturevalue("server")
    return server.url


@pytest.fixture
def opened(url: str) -> Iterator[Callable[[dict[str, str]], DecisionStore]]:
    """Return what opens the store for clusters, which may become known later."""
    stores = list[DecisionStore]()

    def open_for(names: dict[str, str]) -> DecisionStore:
        stores.append(open_store(url, keep_days=1e6, clusters=names))
        return stores[-1]

    yield open_for
    for store in stores:
        store.close()


def test_a_second_cluster_neither_writes_nor_reads_the_store_of_the_first(
    opened: Callable[[dict[str, str]], DecisionStore],
) -> None:
    first, backup, other = opened(ALPHA), opened(dict(ALPHA)), opened(BETA)
    first.record_usage([USAGE])
    backup.record_all([replace(RECORD, number=USAGE.number)])
    for use in (
        lambda: other.record_usage([replace(USAGE, job_id="8")]),
        lambda: other.record(RECORD),
        lambda: other.note_gpu_count(0.0, 900),
        other.usage,
        lambda: other.latest(1),
    ):
        with pytest.raises(
            OtherClusterError, match=r"one cluster; got slurm 'alpha' there and slurm 'beta' here\. Give"
        ):
            use()
    first.note_gpu_count(0.0, 7)
    assert first.gpu_counts(0.0, 1.0) == {0.0: 7}
    assert [(each.usage, each.decision is not None) for each in backup.usage()] == [(USAGE, True)]


def test_a_cluster_that_is_seen_later_claims_the_store_then(
    opened: Callable[[dict[str, str]], DecisionStore],
) -> None:
    """The daemon writes before it has seen a cluster, and a manager may be installed years later."""
    names = dict[str, str]()
    store, reader = opened(names), opened({})
    store.record_usage([USAGE])
    names |= ALPHA
    store.record_usage([replace(USAGE, job_id="8")])
    names |= {"yarn": "rm.site"}
    store.record_usage([replace(USAGE, job_id="9")])
    store.close()
    assert len(store.usage()) == len(reader.usage()) == 3
    assert len(opened({"yarn": "rm.site"}).usage()) == 3  # after a restart, Slurm not seen yet
    for names in (BETA, {"yarn": "rm2.site"}, BETA | {"yarn": "rm.site"}, {"toy": "alpha"}):
        with pytest.raises(OtherClusterError):
            opened(names).usage()


def test_a_store_of_before_is_the_cluster_s_that_comes_first(
    url: str, opened: Callable[[dict[str, str]], DecisionStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STEPS, MIGRATIONS[:3])
    with closing(open_store(url)) as older:
        older.record_usage([USAGE])
    monkeypatch.undo()
    assert [each.usage for each in opened(ALPHA).usage()] == [USAGE]
    with pytest.raises(OtherClusterError):
        opened(BETA).usage()


def test_a_damaged_file_that_is_moved_aside_leaves_a_store_of_the_same_cluster(tmp_path: Path) -> None:
    path = tmp_path / "d.db"
    with closing(open_store(f"sqlite:///{path}", clusters=ALPHA)) as store:
        store.record(RECORD)
        store.close()
        path.write_bytes(b"no database, but a text of some length")
        store.record(RECORD)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM clusters").fetchall() == [("slurm", "alpha")]
