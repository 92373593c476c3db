"""Decisions in a PostgreSQL database, for a site that reads several clusters' in one place.

Invariants:

1. A password is taken from the environment (``PGPASSWORD``) alone: everyone may read the settings file.
2. A server that is slow or away costs the writer's thread a moment, and the job nothing.
3. With ``sslmode=verify-full`` nothing is sent to a server whose certificate the host does not trust for its name, and
   without it no password goes over a network.
"""

from __future__ import annotations

import getpass
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from gpusage.store.decisions import DAY_S, RETRY_S, SCHEMA_VERSION, DecisionStore, StoreError
from gpusage.store.rows import COLUMNS, DEFINITIONS, NUMBER_TYPE, Row, records_of, row
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import DecisionRecord

Connection = Any
"""pg8000's, which has no types."""
PORT = 5432
SOCKETS = "/var/run/postgresql"
SSL_MODES = ("disable", "prefer", "verify-full")
"""Those of libpq's that can be kept to; ``prefer`` encrypts where the server can, whoever it is."""
_TIMEOUT_S = 5.0
_CHUNK_ROWS = 500
_LOCK = 0x67707573
_FORGETTING = (
    "DELETE FROM gpusage.decisions WHERE id IN (SELECT id FROM gpusage.decisions ORDER BY id LIMIT :most)"
    " AND decided_at_s < :oldest"
)
_NUMBERS_INDEX = "CREATE INDEX IF NOT EXISTS numbers ON gpusage.decisions (number)"
_SCHEMA = (
    "CREATE SCHEMA IF NOT EXISTS gpusage",
    "CREATE TABLE IF NOT EXISTS gpusage.version (version INTEGER NOT NULL)",
    f"INSERT INTO gpusage.version SELECT {SCHEMA_VERSION} WHERE NOT EXISTS (SELECT FROM gpusage.version)",  # noqa: S608
    f"CREATE TABLE IF NOT EXISTS gpusage.decisions (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {DEFINITIONS})",
    _NUMBERS_INDEX,
)
_NUMBERS = (
    f"ALTER TABLE gpusage.decisions ADD COLUMN IF NOT EXISTS number {NUMBER_TYPE}",
    _NUMBERS_INDEX,
    f"UPDATE gpusage.version SET version = {SCHEMA_VERSION}",  # noqa: S608 - a number of ours
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a database is.

    Attributes:
        host: A name, or the folder of the server's Unix socket.
        sslmode: Of `SSL_MODES`; a Unix socket is never encrypted.
    """

    host: str
    port: int
    user: str
    database: str
    sslmode: str = "prefer"

    def __str__(self) -> str:
        return f"postgresql://{self.user}@{self.host}:{self.port}/{self.database}"


def address_of(url: str) -> Address:
    """Return the database that *url* names, as libpq reads it, with ``host`` and ``sslmode`` after a question mark.

    Raises:
        RequestError: It is no such URL, or holds a password.
    """
    try:
        parts = urlsplit(url)
        port, options = parts.port or PORT, dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise _url_error(str(error)) from error
    unknown = sorted(set(options) - {"host", "sslmode"})
    mode = options.get("sslmode", "prefer")
    trouble = ""
    if parts.password is not None:
        trouble = "a password, in a file that everyone may read (write it into the daemon's PGPASSWORD)"
    elif unknown:
        trouble = f"{', '.join(unknown)} (host and sslmode are known)"
    elif mode not in SSL_MODES:
        trouble = f"sslmode={mode} ({', '.join(SSL_MODES)} are known)"
    if trouble:
        raise _url_error(trouble)
    user = unquote(parts.username or "") or getpass.getuser()
    return Address(
        host=options.get("host") or parts.hostname or SOCKETS,
        port=port,
        user=user,
        database=unquote(parts.path.strip("/")) or user,
        sslmode=mode,
    )


def ssl_context(mode: str) -> ssl.SSLContext | bool | None:
    """Return what pg8000 wants for *mode*: its own True encrypts and checks nothing, its None tries to."""
    if mode == "verify-full":
        return ssl.create_default_context()
    return None if mode == "prefer" else False


class PostgresqlStore(DecisionStore):
    """Keeps decisions in the schema ``gpusage`` of a database.

    Args:
        url: See `address_of`.
        keep_days: How long decisions are kept; ``None`` for good.

    Raises:
        RequestError: The URL is none, or pg8000 is not installed.
    """

    def __init__(self, url: str, *, keep_days: float | None = None) -> None:
        self.address = address_of(url)
        self._keep_days = keep_days
        self._client = _client()
        self._connection: Connection | None = None
        self._refused: tuple[float, str] | None = None

    def record_all(self, records: Sequence[DecisionRecord]) -> None:
        """Keep *records*; see `DecisionStore.record_all`."""
        rows = [row(record) for record in records]
        kept_open = self._connection is not None
        try:
            self._write(rows)
        except self._client.Error as error:
            self.close()
            if not kept_open:
                raise self._failure(error, "written") from error
            self.record_all(records)  # the server was restarted meanwhile, or a firewall has forgotten the connection

    def prepare(self) -> None:
        """Open the connection; see `DecisionStore.prepare`."""
        with suppress(StoreError):
            self._open()

    def latest(self, count: int, origins: Sequence[str] = ()) -> tuple[DecisionRecord, ...]:
        """Return the last *count* decisions; see `DecisionStore.latest`."""
        names = {f"origin{i}": origin for i, origin in enumerate(origins)}
        where = f"WHERE origin IN ({', '.join(f':{name}' for name in names)})" if names else ""
        return self._read(f"{where} ORDER BY id DESC LIMIT :count", count=count, **names)

    def find(self, number: str) -> DecisionRecord | None:
        """Return one decision; see `DecisionStore.find`."""
        records = self._read("WHERE number = :number ORDER BY id DESC LIMIT 1", number=number)
        return records[0] if records else None

    def _read(self, which: str, **values: str | int) -> tuple[DecisionRecord, ...]:
        try:
            rows = self._open().run(f"SELECT record FROM gpusage.decisions {which}", **values)  # noqa: S608 - ours
        except self._client.Error as error:
            self.close()
            raise self._failure(error, "read") from error
        return records_of([text for (text,) in rows or ()], str(self.address))

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self._client.Error, OSError):
                connection.close()

    def _write(self, rows: Sequence[Row]) -> None:
        connection = self._open()
        connection.run("START TRANSACTION")
        for begin in range(0, len(rows), _CHUNK_ROWS):
            _insert(connection, rows[begin : begin + _CHUNK_ROWS])
        if self._keep_days is not None:
            # A few more than came: an old store shrinks little by little, and no write ever waits for a large one.
            oldest_s = time.time() - self._keep_days * DAY_S
            connection.run(_FORGETTING, most=2 * len(rows) + 1, oldest=oldest_s)
        connection.run("COMMIT")

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
        if connection.run("SELECT to_regclass('gpusage.decisions')") == [[None]]:
            _make(connection, _SCHEMA)
        ((version,),) = connection.run("SELECT max(version) FROM gpusage.version") or [[0]]
        if version < SCHEMA_VERSION:
            _make(connection, _NUMBERS)
        if version > SCHEMA_VERSION:
            message = (
                f"Store {self.address} must have a schema of at most version {SCHEMA_VERSION}; got {version}. "
                "Update gpusage, or name another database in [store] url."
            )
            raise StoreError(message)

    def _failure(self, error: Exception, rule: str) -> StoreError:
        message = f"Store {self.address} must be {rule}; got: {_told(error)}. Check the server and the user's rights."
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


def _make(connection: Connection, statements: Sequence[str]) -> None:
    """Run *statements* as a whole, by one client at a time: two at once would both make the schema."""
    connection.run("START TRANSACTION")
    connection.run("SELECT pg_advisory_xact_lock(:lock)", lock=_LOCK)
    for statement in statements:
        connection.run(statement)
    connection.run("COMMIT")


def _insert(connection: Connection, rows: Sequence[Row]) -> None:
    texts = {f"v{i}_{j}": _storable(value) for i, values in enumerate(rows) for j, value in enumerate(values)}
    marks = ", ".join(f"({', '.join(f':v{i}_{j}' for j in range(len(COLUMNS)))})" for i in range(len(rows)))
    connection.run(f"INSERT INTO gpusage.decisions ({', '.join(COLUMNS)}) VALUES {marks}", **texts)  # noqa: S608 - ours


def _storable(value: float | str | None) -> float | str | None:
    """Return *value* without the one character that PostgreSQL's texts cannot hold."""
    return value.replace("\x00", "\ufffd") if isinstance(value, str) else value


def _client() -> Any:  # noqa: ANN401 - a module without types
    try:
        import pg8000.native  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra
    except ImportError as error:
        message = (
            "Library pg8000 must be there for 'store.url' with PostgreSQL; got: not installed. "
            "Install gpusage with its extra [postgresql]."
        )
        raise RequestError(message) from error
    return pg8000.native


def _told(error: Exception) -> str:
    """Return the server's own words."""
    fields = error.args[0] if error.args else None
    return " ".join(str(fields.get("M", fields) if isinstance(fields, dict) else error).split())


def _url_error(trouble: str) -> RequestError:
    message = f"Key 'store.url' must be 'postgresql://USER@HOST:PORT/DATABASE'; got {trouble}. Mend it in gpusage.toml."
    return RequestError(message)
