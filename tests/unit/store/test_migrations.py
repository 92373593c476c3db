"""A store of an earlier schema, opened by this gpusage: it takes the steps that it lacks, all or none."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.store.decisions import StoreError
from gpusage.store.opening import open_store
from gpusage.store.rows import DECISION_COLUMNS, MIGRATIONS, USAGE_COLUMNS
from postgresql import Server
from records import RECORD, USAGE

NEW = replace(RECORD, number="69215f4affff")
STEPS = "gpusage.store.rows.MIGRATIONS"
NEXT_STEP = ("ALTER TABLE {schema}decisions ADD COLUMN remark TEXT", "CREATE TABLE {schema}remarks ({id}, text TEXT)")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a store of each kind, which has two rows."""
    place = f"sqlite:///{tmp_path}/d.db"
    if request.param == "postgresql":
        server: Server = request.getfixturevalue("server")
        place = server.url
    with closing(open_store(place)) as store:
        store.record(replace(RECORD, number=USAGE.number))
        store.record_usage([USAGE])
    return place


def require_readable_and_writable(url: str) -> None:
    """Require that the store at *url* has the first rows, and takes new ones."""
    with closing(open_store(url)) as store:
        assert [each.decision is not None for each in store.usage()] == [True]
        store.record(NEW)
        assert store.latest(9) == (NEW, replace(RECORD, number=USAGE.number))


def test_a_store_keeps_its_rows_and_can_be_written_after_one_more_step(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several daemons open it at once; a second run of the step would fail."""
    monkeypatch.setattr(STEPS, (*MIGRATIONS, NEXT_STEP))

    def decision_count(_: int) -> int:
        with closing(open_store(url)) as store:
            return len(store.latest(9))

    with ThreadPoolExecutor(max_workers=4) as pool:
        assert set(pool.map(decision_count, range(4))) == {1}
    require_readable_and_writable(url)
    monkeypatch.undo()
    with closing(open_store(url)) as older, pytest.raises(StoreError, match="at most version 3; got 4"):
        older.record(NEW)


def test_where_a_step_fails_none_is_taken(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STEPS, (*MIGRATIONS, ("DROP TABLE {schema}decisions", "NO SQL"), ("",)))
    with closing(open_store(url)) as store, pytest.raises(StoreError, match="must be opened"):
        store.record(NEW)
    monkeypatch.undo()
    require_readable_and_writable(url)


def test_a_column_that_is_written_is_one_that_the_steps_make(tmp_path: Path) -> None:
    """A site would lose every decision by a column without a step."""
    with closing(open_store(f"sqlite:///{tmp_path}/new.db")) as store:
        store.record(NEW)
    with closing(sqlite3.connect(tmp_path / "new.db")) as connection:
        for table, columns in (("decisions", DECISION_COLUMNS), ("usage", USAGE_COLUMNS)):
            names = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
            assert names == {"id", *columns}
