"""Decisions and usage in a PostgreSQL database, for a site that reads several clusters' in one place.

Invariants:

1. A password is taken from the environment (``PGPASSWORD``) alone: everyone may read the settings file.
2. A server that is slow or away costs the writer's thread a moment, and the job nothing.
3. With ``sslmode=verify-full`` nothing is sent to a server whose certificate the host does not trust for its name, and
   without it no password goes over a network.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpusage.store.address import Address, parse_address, ssl_context
from gpusage.store.decisions import DAY_S, RETRY_S, DecisionStore, StoreError
from gpusage.store.migrations import SCHEMA_VERSION, statements_since
from gpusage.store.rows import COLUMNS, Row, decision_row, decode_records
from gpusage.store.usage_rows import (
    Observation,
    UsageQuery,
    decode_observations,
    usage_query,
    usage_upsert,
    usage_values,
)
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import DecisionRecord, Usage

Connection = Any
"""pg8000's, which has no types."""
Insertion = Callable[[Connection], None]
_TIMEOUT_S = 5.0
_CHUNK_ROWS = 500
_LOCK = 0x67707573
_FORGETTING = (
    "DELETE FROM gpusage.{table} WHERE id IN (SELECT id FROM gpusage.{table} ORDER BY id LIMIT :most)"
    " AND {clock} < :oldest"
)
_CLOCKS = {"decisions": "decided_at_s", "usage": "ended_at_s"}
_ID = "id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
_VERSION_TABLE = (
    "CREATE SCHEMA IF NOT EXISTS gpusage",
    "CREATE TABLE IF NOT EXISTS gpusage.version (version INTEGER NOT NULL)",
    "INSERT INTO gpusage.version SELECT 0 WHERE NOT EXISTS (SELECT FROM gpusage.version)",
)


class PostgresqlStore(DecisionStore):
    """Keeps decisions and usage in the schema ``gpusage`` of a database.

    Args:
        url: See `parse_address`.
        keep_days: How long they are kept; ``None`` for good.

    Raises:
        RequestError: The URL is none, or pg8000 is not installed.
    """

    def __init__(self, url: str, *, keep_days: float | None = None) -> None:
        self.address = parse_address(url)
        self._keep_days = keep_days
        self._client = _client()
        self._connection: Connection | None = None
        self._refused: tuple[float, str] | None = None

    def record_all(self, records: Sequence[DecisionRecord]) -> None:
        """Keep *records*; see `DecisionStore.record_all`."""
        rows = [decision_row(record) for record in records]

        def insert(connection: Connection) -> None:
            for begin in range(0, len(rows), _CHUNK_ROWS):
                _insert(connection, rows[begin : begin + _CHUNK_ROWS])
            self._forget(connection, "decisions", len(rows))

        self._insert_with_retry(insert)

    def record_usage(self, usages: Sequence[Usage]) -> None:
        """Keep *usages*; see `DecisionStore.record_usage`."""

        def insert(connection: Connection) -> None:
            for usage in usages:
                values = {name: _storable(value) for name, value in usage_values(usage).items()}
                connection.run(usage_upsert("gpusage."), **values)
            self._forget(connection, "usage", len(usages))

        self._insert_with_retry(insert)

    def _insert_with_retry(self, insert: Insertion) -> None:
        """Write by *insert*, once more where the connection turns out to be cut."""
        reused = self._connection is not None
        try:
            self._write(insert)
        except self._client.Error as error:
            self.close()
            if not reused:
                raise self._failure(error, "written") from error
            # The server was restarted meanwhile, or a firewall has forgotten the connection.
            self._insert_with_retry(insert)

    def prepare(self) -> None:
        """Open the connection; see `DecisionStore.prepare`."""
        with suppress(StoreError):
            self._open()

    def latest(self, count: int, origins: Sequence[str] = ()) -> tuple[DecisionRecord, ...]:
        """Return the last *count* decisions; see `DecisionStore.latest`."""
        names = {f"origin{i}": origin for i, origin in enumerate(origins)}
        where = f"WHERE origin IN ({', '.join(f':{name}' for name in names)})" if names else ""
        return self._read(f"{where} ORDER BY id DESC LIMIT :count", count=count, **names)

    def since(self, since_s: float, origins: Sequence[str] = ()) -> tuple[DecisionRecord, ...]:
        """Return the decisions since then; see `DecisionStore.since`."""
        names = {f"origin{i}": origin for i, origin in enumerate(origins)}
        where = f"AND origin IN ({', '.join(f':{name}' for name in names)})" if names else ""
        return self._read(f"WHERE decided_at_s >= :since {where} ORDER BY id DESC", since=since_s, **names)

    def find(self, number: str) -> DecisionRecord | None:
        """Return one decision; see `DecisionStore.find`."""
        records = self._read("WHERE number = :number ORDER BY id DESC LIMIT 1", number=number)
        return records[0] if records else None

    def observations(self, question: UsageQuery) -> tuple[Observation, ...]:
        """Return what jobs did; see `DecisionStore.usage`."""
        statement, values = usage_query("gpusage.", question)
        return decode_observations(self._rows(statement, values), str(self.address))

    def _read(self, which: str, **values: str | float) -> tuple[DecisionRecord, ...]:
        rows = self._rows(f"SELECT record FROM gpusage.decisions {which}", values)  # noqa: S608 - ours
        return decode_records([text for (text,) in rows], DecisionRecord, str(self.address))

    def _rows(self, statement: str, values: Mapping[str, str | float]) -> Sequence[Any]:
        try:
            return self._open().run(statement, **values) or ()
        except self._client.Error as error:
            self.close()
            raise self._failure(error, "read") from error

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self._client.Error, OSError):
                connection.close()

    def _write(self, insert: Insertion) -> None:
        connection = self._open()
        connection.run("START TRANSACTION")
        insert(connection)
        connection.run("COMMIT")

    def _forget(self, connection: Connection, table: str, new_count: int) -> None:
        """Delete a few more old rows than came: an old store shrinks little by little, and no write ever waits long."""
        if self._keep_days is not None:
            oldest_s = time.time() - self._keep_days * DAY_S
            statement = _FORGETTING.format(table=table, clock=_CLOCKS[table])
            connection.run(statement, most=2 * new_count + 1, oldest=oldest_s)

    def _open(self) -> Connection:
        if self._connection is not None:
            return self._connection
        if self._refused is not None and time.monotonic() < self._refused[0]:
            raise StoreError(self._refused[1])
        try:
            self._connection = self._connected()
            self._prepare(self._connection)
        except (self._client.Error, OSError, StoreError) as error:
            self.close()
            failure = error if isinstance(error, StoreError) else self._failure(error, "opened")
            self._refused = (time.monotonic() + RETRY_S, str(failure))
            raise failure from error
        self._refused = None
        return self._connection

    def _connected(self) -> Connection:
        at = self.address
        place: Mapping[str, Any] = (
            {"unix_sock": f"{at.host}/.s.PGSQL.{at.port}", "ssl_context": False}
            if at.host.startswith("/")
            else {"host": at.host, "port": at.port, "ssl_context": ssl_context(at.sslmode)}
        )
        return self._client.Connection(
            at.user,
            database=at.database,
            password=_password(at),
            timeout=_TIMEOUT_S,
            application_name="gpusage",
            **place,
        )

    def _prepare(self, connection: Connection) -> None:
        is_new = connection.run("SELECT to_regclass('gpusage.version')") == [[None]]
        version = 0 if is_new else _version(connection)
        if version < SCHEMA_VERSION:
            _migrate(connection)
        if version > SCHEMA_VERSION:
            message = (
                f"Store {self.address} must have a schema of at most version {SCHEMA_VERSION}; got {version}. "
                "Update gpusage, or name another database in [store] url."
            )
            raise StoreError(message)

    def _failure(self, error: Exception, rule: str) -> StoreError:
        reason = _describe_error(error)
        message = f"Store {self.address} must be {rule}; got: {reason}. Check the server and the user's rights."
        return StoreError(message)


def _password(at: Address) -> str | None:
    """Return the password for the server at *at*, where it cannot go to whoever answers in its place.

    Raises:
        StoreError: It could.
    """
    password = os.environ.get("PGPASSWORD")
    if password and not at.host.startswith("/") and at.sslmode != "verify-full":
        message = (
            f"Store {at} must prove who it is before it gets the password in PGPASSWORD; got sslmode={at.sslmode}. "
            "Add ?sslmode=verify-full to [store] url, or use the host's own socket."
        )
        raise StoreError(message)
    return password


def _version(connection: Connection) -> int:
    ((version,),) = connection.run("SELECT coalesce(max(version), 0) FROM gpusage.version")
    return int(version)


def _migrate(connection: Connection) -> None:
    """Take the steps that the database lacks, by one client at a time: two at once would both make a table."""
    connection.run("START TRANSACTION")
    connection.run("SELECT pg_advisory_xact_lock(:lock)", lock=_LOCK)
    for statement in _VERSION_TABLE:
        connection.run(statement)
    version = _version(connection)
    for statement in statements_since(version, schema="gpusage.", identity=_ID):
        connection.run(statement)
    if version < SCHEMA_VERSION:
        connection.run("UPDATE gpusage.version SET version = :version", version=SCHEMA_VERSION)
    connection.run("COMMIT")


def _insert(connection: Connection, rows: Sequence[Row]) -> None:
    texts = {f"v{i}_{j}": _storable(value) for i, values in enumerate(rows) for j, value in enumerate(values)}
    marks = ", ".join(f"({', '.join(f':v{i}_{j}' for j in range(len(COLUMNS)))})" for i in range(len(rows)))
    connection.run(f"INSERT INTO gpusage.decisions ({', '.join(COLUMNS)}) VALUES {marks}", **texts)  # noqa: S608 - ours


def _storable(value: float | str | None) -> float | str | None:
    """Return *value* without the one character that PostgreSQL's texts cannot hold."""
    return value.replace("\x00", "\ufffd") if isinstance(value, str) else value


def _client() -> Any:  # a module without types
    try:
        import pg8000.native  # type: ignore[import-untyped]  # an extra
    except ImportError as error:
        message = (
            "Library pg8000 must be there for 'store.url' with PostgreSQL; got: not installed. "
            "Install gpusage with its extra [postgresql]."
        )
        raise RequestError(message) from error
    return pg8000.native


def _describe_error(error: Exception) -> str:
    """Return the server's own words."""
    fields = error.args[0] if error.args else None
    return " ".join(str(fields.get("M", fields) if isinstance(fields, dict) else error).split())
