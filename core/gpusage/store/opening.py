"""From the URL of a store to the store."""

from __future__ import annotations

from pathlib import Path

from gpusage.store.decisions import DecisionStore
from gpusage.store.postgresql import PostgresqlStore
from gpusage.store.sqlite import SqliteStore
from gpusage_hooks.errors import RequestError


def open_store(url: str, *, keep_days: float | None = None) -> DecisionStore:
    """Return the store at *url*; it is opened by its first use.

    Args:
        url: ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``postgresql://user@host/database``.
        keep_days: How long decisions and usage are kept; ``None`` for good.

    Raises:
        RequestError: The URL is of no kind that we can keep decisions in, or pg8000 is not installed.
    """
    if url.startswith(("postgresql://", "postgres://")):
        return PostgresqlStore(url, keep_days=keep_days)
    return SqliteStore(sqlite_path(url), keep_days=keep_days)


def describe_location(url: str) -> str:
    """Return one sentence on where the store at *url* is, for people who found nothing in it."""
    if not url.startswith("sqlite") or sqlite_path(url).exists():
        return f"The store is {url}."
    return f"The store, {url}, is not there: no gpusaged has recorded anything in it."


def sqlite_path(url: str) -> Path:
    """Return the file that a SQLite *url* names; three slashes are a relative path, four an absolute one."""
    # As SQLAlchemy writes it, without its library.
    scheme, separator, path = url.partition(":///")
    if scheme != "sqlite" or not separator or not path:
        message = (
            f"Key 'store.url' must be 'sqlite:///PATH' or 'postgresql://USER@HOST/DATABASE'; got {url!r}. "
            "Write 'sqlite:////var/lib/gpusage/decisions.db'."
        )
        raise RequestError(message)

    return Path(path)
