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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpusage.store.decisions import DecisionStore, StoreError
from gpusage.store.rows import Values, schema_version, statements_since

BUSY_TIMEOUT_S = 1.0
"""How long to wait for another writer."""
_log = logging.getLogger(__name__)
# The second is what CPython makes of SQLite's message where it quotes a damaged schema.
_ERRORS = (sqlite3.Error, UnicodeDecodeError)


class SqliteStore(DecisionStore):
    """Keeps decisions and usage in a file.

    Args:
        path: The file; its folder is made where there is none.
        keep_days: How long they are kept; ``None`` for good.
    """

    # A damaged file is no failure to open: writing moves it aside.
    opening_errors = (sqlite3.OperationalError, OSError, StoreError)
    reading_errors = _ERRORS
    next_step = "Check the disk and the folder's rights."
    begin = "BEGIN IMMEDIATE"  # waits for another writer now, within the busy timeout, and not between two statements

    def __init__(self, path: Path, *, keep_days: float | None = None) -> None:
        super().__init__(repr(str(path)), "", keep_days)
        self.path = path
        self._inode: int | None = None

    def _rows(self, statement: str, values: Values) -> Sequence[Any]:
        # A reader makes no file.
        return super()._rows(statement, values) if self._connection or self.path.exists() else []

    def _run(self, connection: sqlite3.Connection, statement: str, values: Values) -> Sequence[Any]:
        return connection.execute(statement, values).fetchall()

    def _recover(self, error: Exception, *, was_open: bool) -> bool:  # noqa: ARG002 - PostgreSQL's
        """Move a file aside that proves damaged, so that a new one is begun."""
        # CPython gives the two codes of an unsound file the bare class; a locked or full one has a subclass.
        is_corrupt = type(error) in {sqlite3.DatabaseError, UnicodeDecodeError}
        if is_corrupt:
            self._move_aside(error)
        return is_corrupt

    def _open(self) -> sqlite3.Connection:
        """Return the connection, a new one where the file was removed or replaced under it."""
        if self._connection is not None and self._inode != _inode(self.path):
            self.close()
        connection: sqlite3.Connection = super()._open()
        return connection

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            self._require_known(version)

            # With WAL no reader waits for the writer. A power cut costs the last transactions (NORMAL), never the file.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            if version < schema_version():
                _migrate(connection)
        except BaseException:
            connection.close()
            raise

        self._inode = _inode(self.path)
        return connection

    def _move_aside(self, error: Exception) -> None:
        """Rename the file and what SQLite keeps beside it."""
        aside = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        try:
            # The log and its index belong to the damaged file: a new one must not be mended by them.
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    Path(f"{self.path}{suffix}").rename(f"{self.path}.corrupt-{aside}{suffix}")
        except OSError as failure:
            raise self._failure(failure, "moved aside") from failure

        _log.warning("store %s is damaged (%s): moved aside to %s.corrupt-%s", self.path, error, self.path, aside)


def _migrate(connection: sqlite3.Connection) -> None:
    """Take the steps that the file lacks, unless another process has taken them meanwhile."""
    # The number is read again under the lock.
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()

    for statement in statements_since(version, schema="", identity="id INTEGER PRIMARY KEY"):
        connection.execute(statement)
    if version < schema_version():
        connection.execute(f"PRAGMA user_version = {schema_version()}")
    connection.execute("COMMIT")


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino  # noqa: PTH116 - once per batch: four times as fast as Path.stat
    except OSError:
        return None
