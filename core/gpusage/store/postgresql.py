"""Decisions and usage of a cluster in a PostgreSQL database, which the gpusageds of its controllers share.

Invariants:

1. A password comes from the environment (``PGPASSWORD``) alone: everyone may read the settings file.
2. A server that is slow or away costs the writer's thread a moment, and the job nothing.
3. With ``sslmode=verify-full`` nothing is sent to a server whose certificate the host does not trust for its name, and
   without it no password goes over a network.
"""

from __future__ import annotations

import getpass
import os
import ssl
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from gpusage.store.decisions import DecisionStore, StoreError
from gpusage.store.rows import Values, schema_version, statements_since
from gpusage_hooks.errors import RequestError

PORT = 5432
SOCKETS = "/var/run/postgresql"
SSL_MODES = ("disable", "prefer", "verify-full")
"""Those of libpq's that can be kept to; ``prefer`` encrypts where the server can, whoever it is."""
Connection = Any
"""pg8000's, which has no types."""
_TIMEOUT_S = 5.0
# Of PostgreSQL's advisory locks; any number that no other program takes: "gpus" in ASCII.
_LOCK = 0x67707573
_ID = "id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
_VERSION_TABLE = (
    "CREATE SCHEMA IF NOT EXISTS gpusage",
    "CREATE TABLE IF NOT EXISTS gpusage.version (version INTEGER NOT NULL)",
    "INSERT INTO gpusage.version SELECT 0 WHERE NOT EXISTS (SELECT FROM gpusage.version)",
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


class PostgresqlStore(DecisionStore):
    """Keeps decisions and usage in the schema ``gpusage`` of a database.

    Args:
        url: See `parse_address`.
        keep_days: How long they are kept; ``None`` for good.

    Raises:
        RequestError: The URL is none, or pg8000 is not installed.
    """

    next_step = "Check the server and the user's rights."
    begin = "START TRANSACTION"

    def __init__(self, url: str, *, keep_days: float | None = None) -> None:
        self.address = parse_address(url)
        super().__init__(str(self.address), "gpusage.", keep_days)
        self._client = _client()
        self.reading_errors = (self._client.Error,)
        self.opening_errors = (self._client.Error, OSError, StoreError)

    def _run(self, connection: Connection, statement: str, values: Values) -> Sequence[Any]:
        # The one character that its texts cannot hold is replaced.
        texts = {name: value.replace("\x00", "\ufffd") for name, value in values.items() if isinstance(value, str)}
        return connection.run(statement, **{**values, **texts}) or ()

    def _recover(self, error: Exception, *, was_open: bool) -> bool:  # noqa: ARG002 - SQLite's
        # The server was restarted meanwhile, or a firewall has forgotten the connection. One that is new is neither.
        return was_open

    def _connect(self) -> Connection:
        at = self.address
        place: Mapping[str, Any] = (
            {"unix_sock": f"{at.host}/.s.PGSQL.{at.port}", "ssl_context": False}
            if at.host.startswith("/")
            else {"host": at.host, "port": at.port, "ssl_context": ssl_context(at.sslmode)}
        )
        whose = {"user": at.user, "database": at.database, "password": _password(at), "application_name": "gpusage"}
        connection = self._client.Connection(timeout=_TIMEOUT_S, **whose, **place)

        try:
            # Without the table, SELECT would fail, and leave an error in the server's log.
            is_new = connection.run("SELECT to_regclass('gpusage.version')") == [[None]]
            version = 0 if is_new else _version(connection)
            self._require_known(version)
            if version < schema_version():
                # To index millions of rows takes longer than an answer may.
                with closing(self._client.Connection(timeout=None, **whose, **place)) as patient:
                    _migrate(patient)
        except BaseException:
            with suppress(self._client.Error, OSError):
                connection.close()
            raise
        return connection


def parse_address(url: str) -> Address:
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

    # As libpq has it: no user is this process's, and no database is the user's.
    user = unquote(parts.username or "") or getpass.getuser()
    return Address(
        host=options.get("host") or parts.hostname or SOCKETS,
        port=port,
        user=user,
        database=unquote(parts.path.strip("/")) or user,
        sslmode=mode,
    )


def ssl_context(mode: str) -> ssl.SSLContext | bool | None:
    """Return pg8000's argument for *mode*; its None encrypts if the server can."""
    # pg8000's True would encrypt and check nothing.
    if mode == "verify-full":
        return ssl.create_default_context()
    return None if mode == "prefer" else False


def _url_error(trouble: str) -> RequestError:
    message = f"Key 'store.url' must be 'postgresql://USER@HOST:PORT/DATABASE'; got {trouble}. Fix it in gpusage.toml."
    return RequestError(message)


def _password(at: Address) -> str | None:
    """Return the password for the server at *at*, where it cannot go to whoever answers in its place.

    Raises:
        StoreError: It could.
    """
    # A socket of this host's, or a certificate, proves who the server is.
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
    # The lock is held until the transaction ends, however it ends.
    connection.run("START TRANSACTION")
    connection.run("SELECT pg_advisory_xact_lock(:lock)", lock=_LOCK)
    for statement in _VERSION_TABLE:
        connection.run(statement)
    version = _version(connection)
    for statement in statements_since(version, schema="gpusage.", identity=_ID):
        connection.run(statement)
    if version < schema_version():
        connection.run("UPDATE gpusage.version SET version = :version", version=schema_version())
    connection.run("COMMIT")


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
