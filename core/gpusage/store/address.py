"""The address of a PostgreSQL database, and how its server must prove its identity."""

from __future__ import annotations

import getpass
import ssl
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from gpusage_hooks.errors import RequestError

PORT = 5432
SOCKETS = "/var/run/postgresql"
SSL_MODES = ("disable", "prefer", "verify-full")
"""Those of libpq's that can be kept to; ``prefer`` encrypts where the server can, whoever it is."""


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


def _url_error(trouble: str) -> RequestError:
    message = f"Key 'store.url' must be 'postgresql://USER@HOST:PORT/DATABASE'; got {trouble}. Fix it in gpusage.toml."
    return RequestError(message)
