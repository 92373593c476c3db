"""Decisions and usage in one SQLite file.

Invariants:

1. A `SqliteStore` is opened by its first use and belongs to the thread of that first use.
2. A batch is in the file whole or not at all.
3. A file that is not a sound database is moved aside, never deleted, and a new one begun.
4. A file written by a newer gpusage is left alone.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from gpusage.store.decisions import DAY_S, RETRY_S, DecisionStore, StoreError
from gpusage.store.migrations import SCHEMA_VERSION, statements_since
from gpusage.store.rows import COLUMNS, decision_row, decode_records
from gpusage.store.usage_rows import (
    Observation,
    UsageQuery,
    Values,
    decode_observations,
    usage_query,
    usage_upsert,
    usage_values,
)
from gpusage_hooks.types import DecisionRecord, Usage

CHUNK_ROWS = 100
"""Rows of one statement: this hands the interpreter over once, not once per row; the thread that answers runs on.
SQLite before 3.32 takes 999 parameters."""

_log = logging.getLogger(__name__)
_FORGETTING = "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} ORDER BY id LIMIT ?) AND {clock} < ?"
_CLOCKS = {"decisions": "decided_at_s", "usage": "ended_at_s"}
_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""The second is what CPython makes of SQLite's message where it quotes a damaged schema."""
Insertion = Callable[[sqlite3.Connection], None]


class SqliteStore(DecisionStore):
    """Keeps decisions and usage in a file.

    Args:
        path: The file; its folder is made where there is none.
        busy_timeout_s: How long to wait for another writer.
        keep_days: How long they are kept; ``None`` for good.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float = 1.0, keep_days: float | None = None) -> None:
        self.path = path
        self._keep_days = keep_days
        self._busy_timeout_s = busy_timeout_s
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._refused: tuple[float, str] | None = None

    def record_all(self, records: Sequence[DecisionRecord]) -> None:
        """Keep *records*; see `DecisionStore.record_all`."""
        rows = [decision_row(record) for record in records]

        def insert(connection: sqlite3.Connection) -> None:
            for begin in range(0, len(rows), CHUNK_ROWS):
                chunk = rows[begin : begin + CHUNK_ROWS]
                connection.execute(_insertion(len(chunk)), tuple(chain.from_iterable(chunk)))
            self._forget(connection, "decisions", len(rows))

        self._insert_with_recovery(insert)

    def record_usage(self, usages: Sequence[Usage]) -> None:
        """Keep *usages*; see `DecisionStore.record_usage`."""
        rows = [usage_values(usage) for usage in usages]

        def insert(connection: sqlite3.Connection) -> None:
            connection.executemany(usage_upsert(""), rows)
            self._forget(connection, "usage", len(rows))

        self._insert_with_recovery(insert)

    def _insert_with_recovery(self, insert: Insertion) -> None:
        """Write by *insert*; a file that is found damaged is moved aside, and a new one begun."""
        try:
            self._write(insert)
        except _ERRORS as error:
            self.close()
            if not _is_corrupt(error):
                raise self._failure(error, "written") from error
            self._move_aside(error)
            try:
                self._write(insert)
            except _ERRORS as second:
                self.close()
                raise self._failure(second, "written") from second

    def prepare(self) -> None:
        """Open the file; see `DecisionStore.prepare`."""
        with suppress(*_ERRORS, StoreError):
            self._open()

    def latest(self, count: int, origins: Sequence[str] = ()) -> tuple[DecisionRecord, ...]:
        """Return the last *count* decisions; see `DecisionStore.latest`."""
        where = f"WHERE origin IN ({', '.join('?' * len(origins))})" if origins else ""
        return self._read(f"{where} ORDER BY id DESC LIMIT ?", *origins, count)

    def since(self, since_s: float, origins: Sequence[str] = ()) -> tuple[DecisionRecord, ...]:
        """Return the decisions since then; see `DecisionStore.since`."""
        where = f"AND origin IN ({', '.join('?' * len(origins))})" if origins else ""
        return self._read(f"WHERE decided_at_s >= ? {where} ORDER BY id DESC", since_s, *origins)

    def find(self, number: str) -> DecisionRecord | None:
        """Return one decision; see `DecisionStore.find`."""
        records = self._read("WHERE number = ? ORDER BY id DESC LIMIT 1", number)
        return records[0] if records else None

    def observations(self, question: UsageQuery) -> tuple[Observation, ...]:
        """Return what jobs did; see `DecisionStore.usage`."""
        return decode_observations(self._rows(*usage_query("", question)), str(self.path))

    def _read(self, which: str, *values: str | float) -> tuple[DecisionRecord, ...]:
        rows = self._rows(f"SELECT record FROM decisions {which}", values)  # noqa: S608 - ours
        return decode_records([text for (text,) in rows], DecisionRecord, str(self.path))

    def _rows(self, statement: str, values: Sequence[str | float] | Values) -> list[tuple[Any, ...]]:
        if self._connection is None and not self.path.exists():
            return []
        try:
            return self._open().execute(statement, values).fetchall()
        except _ERRORS as error:
            self.close()
            raise self._failure(error, "read") from error

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _write(self, insert: Insertion) -> None:
        connection = self._open()
        connection.execute("BEGIN IMMEDIATE")
        insert(connection)
        connection.execute("COMMIT")

    def _forget(self, connection: sqlite3.Connection, table: str, new_count: int) -> None:
        """Delete a few more old rows than came: an old store shrinks little by little, and no write ever waits long."""
        if self._keep_days is not None:
            oldest_s = time.time() - self._keep_days * DAY_S
            statement = _FORGETTING.format(table=table, clock=_CLOCKS[table])
            connection.execute(statement, (2 * new_count + 1, oldest_s))

    def _open(self) -> sqlite3.Connection:
        """Return the connection, anew where the file was removed or replaced under it."""
        if self._connection is not None and self._inode == _inode(self.path):
            return self._connection
        self.close()
        self._refuse_for_a_while()
        try:
            self._connection = self._connected()
        except (sqlite3.OperationalError, OSError, StoreError) as error:
            failure = error if isinstance(error, StoreError) else self._failure(error, "opened")
            self._refused = (time.monotonic() + RETRY_S, str(failure))
            raise failure from error
        self._refused = None
        self._inode = _inode(self.path)
        return self._connection

    def _connected(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=self._busy_timeout_s, isolation_level=None)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            message = (
                f"Store {str(self.path)!r} must have a schema of at most version {SCHEMA_VERSION}; got {version}. "
                "Update gpusage, or name another file in [store] url."
            )
            raise StoreError(message)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if version < SCHEMA_VERSION:
            _migrate(connection)

    def _refuse_for_a_while(self) -> None:
        """Fail at once where opening failed a moment ago: a broken disk must not be asked thousands of times."""
        if self._refused is not None and time.monotonic() < self._refused[0]:
            raise StoreError(self._refused[1])

    def _move_aside(self, error: Exception) -> None:
        """Rename the file and what SQLite keeps beside it."""
        aside = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        try:
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    Path(f"{self.path}{suffix}").rename(f"{self.path}.corrupt-{aside}{suffix}")
        except OSError as failure:
            raise self._failure(failure, "moved aside") from failure
        _log.warning("store %s is damaged (%s): moved aside to %s.corrupt-%s", self.path, error, self.path, aside)

    def _failure(self, error: Exception, rule: str) -> StoreError:
        message = f"Store {str(self.path)!r} must be {rule}; got: {error}. Check the disk and the folder's rights."
        return StoreError(message)


def _migrate(connection: sqlite3.Connection) -> None:
    """Take the steps that the file lacks, unless another process has taken them meanwhile."""
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    # Early gpusages made the whole table before they wrote its number; one may have been killed between.
    columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(decisions)")]
    for statement in statements_since(version, schema="", identity="id INTEGER PRIMARY KEY"):
        if version or "number" not in columns or "ADD COLUMN number" not in statement:
            connection.execute(statement)
    if version < SCHEMA_VERSION:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


@cache
def _insertion(count: int) -> str:
    """Return the statement that inserts *count* rows."""
    marks = f"({', '.join('?' * len(COLUMNS))})"
    return f"INSERT INTO decisions ({', '.join(COLUMNS)}) VALUES {', '.join([marks] * count)}"  # noqa: S608 - our names


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino  # noqa: PTH116 - asked before each batch: four times as fast as Path.stat
    except OSError:
        return None


def _is_corrupt(error: Exception) -> bool:
    """Return whether SQLite found the file itself unsound; CPython gives these two codes the bare class."""
    return type(error) in {sqlite3.DatabaseError, UnicodeDecodeError}
