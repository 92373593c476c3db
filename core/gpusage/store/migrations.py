"""The tables of the store, as numbered steps from an empty database, for SQLite and PostgreSQL alike.

Invariants:

1. A step that has been released never changes: databases that took it exist. A new column is a new step at the end.
2. A database has taken the steps up to the number that it holds; a newer gpusage's number is never lowered.
3. The steps that a database lacks are taken in one transaction, by one client at a time.
"""

from __future__ import annotations

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        (
            "CREATE TABLE IF NOT EXISTS {schema}decisions ({id}, decided_at_s DOUBLE PRECISION NOT NULL,"
            " manager TEXT NOT NULL, mode TEXT NOT NULL, code TEXT NOT NULL, origin TEXT NOT NULL, model TEXT,"
            " before TEXT NOT NULL, after TEXT NOT NULL, record TEXT NOT NULL)"
        ),
    ),
    (  # decisions are found by the number in a job's annotation
        "ALTER TABLE {schema}decisions ADD COLUMN number TEXT",
        "CREATE INDEX IF NOT EXISTS numbers ON {schema}decisions (number)",
    ),
    (  # what jobs really did
        (
            "CREATE TABLE IF NOT EXISTS {schema}usage ({id}, number TEXT NOT NULL, manager TEXT NOT NULL,"
            " job_id TEXT NOT NULL, owner TEXT NOT NULL, started_at_s DOUBLE PRECISION NOT NULL,"
            " ended_at_s DOUBLE PRECISION NOT NULL, outcome TEXT NOT NULL, record TEXT NOT NULL)"
        ),
        "CREATE UNIQUE INDEX IF NOT EXISTS usage_runs ON {schema}usage (manager, job_id, started_at_s, number)",
        "CREATE INDEX IF NOT EXISTS usage_ends ON {schema}usage (ended_at_s)",
        "CREATE INDEX IF NOT EXISTS usage_numbers ON {schema}usage (number)",
    ),
)
SCHEMA_VERSION = len(MIGRATIONS)


def statements_since(version: int, *, schema: str, identity: str) -> tuple[str, ...]:
    """Return the statements that bring a database from *version*, 0 for an empty one, to `SCHEMA_VERSION`.

    Args:
        version: That the database holds.
        schema: Before each table's name: empty, or a name and a dot.
        identity: The definition of the column ``id``.
    """
    return tuple(text.format(schema=schema, id=identity) for step in MIGRATIONS[version:] for text in step)
