"""Stores of every earlier schema, as the gpusage of their time wrote them, opened by this one."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.store.decisions import DecisionStore, StoreError
from gpusage.store.migrations import SCHEMA_VERSION
from gpusage.store.opening import open_store
from gpusage.store.rows import COLUMNS
from gpusage.store.usage_rows import USAGE_COLUMNS
from postgresql import Server
from records import RECORD, USAGE

STORES = Path(__file__).parents[2] / "golden" / "stores"
SCHEMAS = range(1, SCHEMA_VERSION + 1)
NEW = replace(RECORD, number="69215f4affff")
ROWS = {1: (1, 0), 2: (2, 0), 3: (2, 1)}
"""Decisions and usages of each dump; from the second on one decision has the number below."""
NUMBER = "69215f4a0c3e"


def require_readable_and_writable(store: DecisionStore, schema: int) -> None:
    """Require that *store* has the rows of the dump of *schema*, and takes new ones."""
    decisions, usages = ROWS[schema]
    assert [record.rendered.after for record in store.latest(9)] == ["gres/mps:40"] * decisions
    assert (store.find(NUMBER) is not None) == (schema > 1)
    assert [each.decision is not None for each in store.usage()] == [True] * usages
    store.record(NEW)
    store.record_usage([replace(USAGE, job_id="new", number=NEW.number)])
    assert store.find(NEW.number) == NEW
    (observed,) = store.usage(job_id="new")
    assert observed.decision == NEW


def tables(connection: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    """Return each table's columns, and the indices."""
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns = {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for name in names}
    actual = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'index' ORDER BY name").fetchall()
    return {**columns, "indices": [(text.replace("IF NOT EXISTS ", ""),) for (text,) in actual]}


def sqlite_store(path: Path, schema: int) -> str:
    """Make the store of *schema* at *path*, and return its URL."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((STORES / f"sqlite-{schema}.sql").read_text(encoding="utf-8"))
    return f"sqlite:///{path}"


def postgresql_store(server: Server, schema: int, tmp_path: Path) -> None:
    """Make the store of *schema*, with the rows of SQLite's."""
    for statement in (STORES / f"postgresql-{schema}.sql").read_text(encoding="utf-8").splitlines():
        server.ask(statement)
    sqlite_store(tmp_path / "rows.db", schema)
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        for table in set(tables(connection)) - {"indices"}:
            names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})") if name != "id"]
            for values in connection.execute(f"SELECT {', '.join(names)} FROM {table}"):
                texts = ", ".join(f"'{value}'" for value in values)
                server.ask(f"INSERT INTO gpusage.{table} ({', '.join(names)}) VALUES ({texts})")


def test_every_schema_has_a_store_of_its_time() -> None:
    """A step that is added needs the dump of a store that has taken it."""
    assert list(SCHEMAS) == list(ROWS)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_sqlite_store_keeps_its_rows_and_can_be_written(schema: int, tmp_path: Path) -> None:
    with closing(open_store(sqlite_store(tmp_path / "d.db", schema))) as store:
        require_readable_and_writable(store, schema)
    with closing(sqlite3.connect(tmp_path / "d.db")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_postgresql_store_keeps_its_rows_and_can_be_written(schema: int, server: Server, tmp_path: Path) -> None:
    """Several daemons open it at once."""
    postgresql_store(server, schema, tmp_path)

    def decision_count(_: int) -> int:
        with closing(open_store(server.url)) as store:
            return len(store.latest(9))

    with ThreadPoolExecutor(max_workers=4) as pool:
        assert set(pool.map(decision_count, range(4))) == {ROWS[schema][0]}
    with closing(open_store(server.url)) as store:
        require_readable_and_writable(store, schema)
    assert server.ask("SELECT version FROM gpusage.version") == [[SCHEMA_VERSION]]


def test_a_column_that_is_written_is_one_that_the_steps_make_in_the_order_of_their_release(tmp_path: Path) -> None:
    """A site that upgrades would lose every decision by a column without a step, or by a released step that changes."""
    with closing(open_store(f"sqlite:///{tmp_path}/new.db")) as store:
        store.record(NEW)
    newest = tmp_path / "newest.db"
    sqlite_store(newest, SCHEMA_VERSION)
    with closing(sqlite3.connect(tmp_path / "new.db")) as new, closing(sqlite3.connect(newest)) as recorded:
        assert {name for _, name, *_ in tables(new)["decisions"]} == {"id", *COLUMNS}
        assert {name for _, name, *_ in tables(new)["usage"]} == {"id", *USAGE_COLUMNS}
        assert tables(new) == tables(recorded)


def test_a_file_whose_maker_was_killed_before_it_wrote_the_number_is_opened(tmp_path: Path) -> None:
    url = sqlite_store(tmp_path / "d.db", 3)
    with closing(sqlite3.connect(tmp_path / "d.db")) as connection:
        connection.execute("PRAGMA user_version = 0")
    with closing(open_store(url)) as store:
        require_readable_and_writable(store, 3)


def test_where_a_step_fails_none_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = sqlite_store(tmp_path / "d.db", 1)
    monkeypatch.setattr("gpusage.store.migrations.MIGRATIONS", (("",), ("DROP TABLE decisions", "NO SQL"), ("",)))
    with closing(open_store(url)) as store, pytest.raises(StoreError, match="must be opened"):
        store.record(NEW)
    monkeypatch.undo()
    with closing(open_store(url)) as store:
        require_readable_and_writable(store, 1)
