"""The store of decisions and usage, whatever database holds them: one row per decision, one per run of a job.

Invariants:

1. A store is opened by its first use and belongs to the thread of that first use.
2. A batch is in the store whole or not at all.
3. A store written by a newer gpusage is left alone.
4. Any cluster may write. A store is to hold the jobs of one, since of two, equal job numbers, partitions and days are
   one; `mixed_clusters` tells where it does not.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import Any

from gpusage.store.rows import (
    Observation,
    UsageQuery,
    Values,
    among,
    decision_insertions,
    decode_observations,
    decode_records,
    deletion,
    forget_days,
    packed,
    schema_version,
    unpacked,
    usage_query,
    usage_upsert,
    usage_values,
)
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import DecisionRecord, Usage
from gpusage_hooks.units import DAY_S

EVERYTHING = UsageQuery()
CHUNK_ROWS = 500
"""Decisions that a reader of many has at a time: one takes up to 10 KB."""
MOST_DAYS = 3650
"""So many days are added up where rows stay for good."""
CLUSTER_DAYS = 3
"""So long a cluster counts that has written: longer than from one note to the next, and not long after a renaming."""
RETRY_S = 1.0
"""How long a store that could not be opened is not tried again."""


class StoreError(GpuUsageError):
    """The store cannot be read or written."""

    code = "store"


class DecisionStore(ABC):
    """Keeps decisions, and the usage of jobs.

    Args:
        name: The store's place, for messages.
        schema: Before each table's name: empty, or a name and a dot.
        keep_days: How long rows stay; ``None`` for good.
    """

    opening_errors: tuple[type[Exception], ...]
    reading_errors: tuple[type[Exception], ...]
    next_step: str
    """The end of a message on a failure."""
    begin: str
    """The statement that begins a transaction."""

    def __init__(self, name: str, schema: str, keep_days: float | None) -> None:
        self._name = name
        self._schema = schema
        self._keep_days = keep_days
        self._connection: Any = None
        self._refused: tuple[float, str] | None = None

    def record(self, record: DecisionRecord) -> None:
        """Keep one decision; see `record_all`."""
        self.record_all((record,))

    def record_all(self, records: Sequence[DecisionRecord]) -> None:
        """Keep *records*, all in one transaction.

        Raises:
            StoreError: None of them could be written.
        """
        self._write_all("decisions", len(records), [*decision_insertions(self._schema, records)])

    def record_usage(self, usages: Sequence[Usage]) -> None:
        """Keep *usages*, all in one transaction; a row of the same run is replaced.

        Raises:
            StoreError: None of them could be written.
        """
        rows = [(usage_upsert(self._schema), usage_values(usage)) for usage in usages]
        self._write_all("usage", len(usages), [*forget_days(self._schema, usages), *rows])

    def claim_day(self, day_s: float) -> None:
        """Begin to add up the day, in UTC, that begins at *day_s*; a run of it that is recorded ends that.

        Raises:
            StoreError: It could not be written.
        """
        statement = (
            f"INSERT INTO {self._schema}days (day_s, report) VALUES (:day_s, '')"  # noqa: S608 - our schema
            " ON CONFLICT (day_s) DO UPDATE SET report = ''"
        )
        self._write_all("days", 1, [(statement, {"day_s": day_s})])

    def record_day(self, day_s: float, report: bytes, form: str = "") -> None:
        """Keep the JSON *report*, of a *form* without blanks, of a claimed day until a run of the day is recorded.

        Raises:
            StoreError: It could not be written.
        """
        statement = f"UPDATE {self._schema}days SET report = :report WHERE day_s = :day_s"  # noqa: S608 - our schema
        self._write_all("days", 0, [(statement, {"day_s": day_s, "report": f"{form} {packed(report)}"})])

    def note_cluster(self, day_s: float, manager: str, name: str, gpu_count: int) -> None:
        """Note that *manager*'s cluster *name* wrote here on the day, in UTC, that begins at *day_s*.

        It had *gpu_count* GPUs then; the largest stays.

        Raises:
            StoreError: It could not be written.
        """
        statement = (
            f"INSERT INTO {self._schema}cluster_days AS old (day_s, manager, name, gpu_count)"  # noqa: S608 - our schema
            " VALUES (:day_s, :manager, :name, :gpu_count) ON CONFLICT (day_s, manager, name)"
            " DO UPDATE SET gpu_count = excluded.gpu_count WHERE excluded.gpu_count > old.gpu_count"
        )
        values: Values = {"day_s": day_s, "manager": manager, "name": name, "gpu_count": gpu_count}
        self._write_all("cluster_days", 1, [(statement, values)])

    def gpu_counts(self, since_s: float, until_s: float) -> Mapping[float, int]:
        """Return the noted GPUs of the days that have a part from *since_s* until before *until_s*, by their begins."""
        selection = (
            f"SELECT day_s, SUM(gpu_count) FROM {self._schema}cluster_days"  # noqa: S608 - our schema
            " WHERE day_s > :first_s AND day_s < :until_s GROUP BY day_s"
        )
        return dict(self._rows(selection, {"first_s": since_s - DAY_S, "until_s": until_s}))

    def mixed_clusters(self) -> str:
        """Return one sentence where several clusters of one manager wrote here in the last days, else ``""``."""
        selection = (
            f"SELECT DISTINCT a.manager, a.name FROM {self._schema}cluster_days a JOIN {self._schema}cluster_days b"  # noqa: S608 - our schema
            " ON a.manager = b.manager AND a.name <> b.name AND a.name <> '' AND b.name <> ''"
            " WHERE a.day_s > :since_s AND b.day_s > :since_s ORDER BY a.manager, a.name"
        )
        rows = self._rows(selection, {"since_s": time.time() - CLUSTER_DAYS * DAY_S})
        names = " and ".join(f"{manager} {name!r}" for manager, name in rows)
        return names and (
            f"Store {self._name} must hold the jobs of one cluster, or figures mix several; got {names} in the last "
            f"{CLUSTER_DAYS} days. Give each cluster a database or file of its own in [store] url."
        )

    def prepare(self) -> None:
        """Open the store now, so that the first decision need not wait; that one reports a failure."""
        with suppress(*self.reading_errors, StoreError):
            self._open()

    def latest(self, count: int, origins: Sequence[str] = ()) -> tuple[DecisionRecord, ...]:
        """Return the last *count* decisions, the newest first; none where there is no store yet.

        Args:
            count: At most so many.
            origins: Only those of one of these; empty, everybody's.

        Raises:
            StoreError: It is not a store of ours, or of a newer gpusage.
        """
        # Not by time: ids rise even where clocks are set back.
        where, values = _from_origins(origins)
        return self._decisions(f"{where} ORDER BY id DESC LIMIT :count", {**values, "count": count})

    def between(
        self, since_s: float, until_s: float, origins: Sequence[str] = ()
    ) -> Iterator[tuple[DecisionRecord, ...]]:
        """Yield the decisions made from *since_s* until before *until_s*, `CHUNK_ROWS` at a time; see `latest`."""
        where, values = _from_origins(origins)
        times = "decided_at_s >= :since_s AND decided_at_s < :until_s"
        selection = f"SELECT id FROM {self._schema}decisions {where} AND {times} ORDER BY id"  # noqa: S608 - our names
        ids = [number for (number,) in self._rows(selection, {**values, "since_s": since_s, "until_s": until_s})]
        for begin in range(0, len(ids), CHUNK_ROWS):
            yield self._decisions(f"WHERE {among('id', ids[begin : begin + CHUNK_ROWS])}", {})

    def runs_between(self, since_s: float, until_s: float, user: str = "") -> Mapping[tuple[str, str], Sequence[int]]:
        """Return the rows of the runs that ended from *since_s* until before *until_s*, by job, user by user."""
        whose, values = ("owner = :user AND", {"user": user}) if user else ("", {})
        selection = (
            f"SELECT manager, job_id, id FROM {self._schema}usage"  # noqa: S608 - our names
            f" WHERE {whose} ended_at_s >= :since_s AND ended_at_s < :until_s ORDER BY owner, id"
        )
        jobs: dict[tuple[str, str], list[int]] = defaultdict(list)
        for manager, job_id, number in self._rows(selection, {**values, "since_s": since_s, "until_s": until_s}):
            jobs[manager, job_id].append(number)
        return jobs

    def day(self, day_s: float, form: str = "") -> bytes | None:
        """Return the report of *form* of the day that begins at *day_s*; ``None`` where none is kept."""
        selection = f"SELECT report FROM {self._schema}days WHERE day_s = :day_s AND report LIKE :form"  # noqa: S608 - our schema
        rows = self._rows(selection, {"day_s": day_s, "form": f"{form} %"})
        return unpacked(rows[0][0].partition(" ")[2]) if rows else None

    def missing_days(self, until_s: float, form: str = "") -> list[float]:
        """Return when the days begin that have no report of *form*, from the first kept run's to *until_s*."""
        # Not from the earliest time: the clock of one node may stand at 1970, or in a year to come.
        values: Values = {"since_s": until_s - (self._keep_days or MOST_DAYS) * DAY_S, "until_s": until_s}
        times = "ended_at_s >= :since_s AND ended_at_s < :until_s"
        rows = self._rows(f"SELECT ended_at_s FROM {self._schema}usage WHERE {times} ORDER BY id LIMIT 1", values)  # noqa: S608 - our schema
        if not rows:
            return []
        selection = f"SELECT day_s FROM {self._schema}days WHERE report LIKE :form"  # noqa: S608 - our schema
        known = {day_s for (day_s,) in self._rows(selection, {"form": f"{form} %"})}
        days = range(int(rows[0][0] // DAY_S), int(until_s // DAY_S))
        return [day * DAY_S for day in days if day * DAY_S not in known]

    def find(self, number: str) -> DecisionRecord | None:
        """Return the decision with this *number*, ``None`` where there is none.

        Raises:
            StoreError: As `latest`.
        """
        records = self._decisions("WHERE number = :number ORDER BY id DESC LIMIT 1", {"number": number})
        return records[0] if records else None

    def usage(self, question: UsageQuery = EVERYTHING) -> tuple[Observation, ...]:
        """Return the runs that *question* asks for, each with its decision, the last one first; none without a store.

        Raises:
            StoreError: As `latest`.
        """
        return decode_observations(self._rows(*usage_query(self._schema, question)), self._name)

    def evidence(self, count_per_user: int, question: UsageQuery) -> Iterator[Observation]:
        """Yield the runs to learn from, user by user, of each the last *count_per_user* at most; see `usage`.

        Whoever learns reads by this: without a count per user, one user's many short jobs displace everyone else's.
        Only `CHUNK_ROWS` are in memory at a time.

        Raises:
            StoreError: As `latest`.
        """
        statement, values = usage_query(self._schema, replace(question, count_per_user=count_per_user), "u.owner, u.id")
        ids = [number for _, number in sorted(self._rows(statement, values), key=itemgetter(0))]
        for begin in range(0, len(ids), CHUNK_ROWS):
            chunk = self.usage(UsageQuery(ids=ids[begin : begin + CHUNK_ROWS]))
            yield from sorted(chunk, key=lambda each: each.usage.user)

    def close(self) -> None:
        """Close the store; the next use opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # A damaged file, or a connection that is cut, may not even be closed.
            with suppress(*self.reading_errors, OSError):
                connection.close()

    def _write_all(
        self, table: str, count: int, statements: Sequence[tuple[str, Values]], *, is_retry: bool = False
    ) -> None:
        """Run *statements*, which add *count* rows to *table*, in one transaction."""
        was_open = self._connection is not None
        try:
            connection = self._open()
            self._run(connection, self.begin, {})
            for statement, values in statements:
                self._run(connection, statement, values)
            if self._keep_days is not None:
                self._run(connection, *deletion(self._schema, table, keep_days=self._keep_days, new_count=count))
            self._run(connection, "COMMIT", {})
        except self.reading_errors as error:
            # Closing rolls the transaction back.
            self.close()
            if is_retry or not self._recover(error, was_open=was_open):
                raise self._failure(error, "written") from error
            self._write_all(table, count, statements, is_retry=True)

    def _rows(self, statement: str, values: Values) -> Sequence[Any]:
        """Return the rows that *statement* selects."""
        try:
            return self._run(self._open(), statement, values)
        except self.reading_errors as error:
            self.close()
            raise self._failure(error, "read") from error

    @abstractmethod
    def _run(self, connection: Any, statement: str, values: Values) -> Sequence[Any]:
        """Run *statement* and return the rows that it selects."""

    @abstractmethod
    def _recover(self, error: Exception, *, was_open: bool) -> bool:
        """Return whether a write that ended in *error* may work again; *was_open*: on a connection of before."""

    @abstractmethod
    def _connect(self) -> Any:
        """Return a new connection to a database of the current schema."""

    def _decisions(self, which: str, values: Values) -> tuple[DecisionRecord, ...]:
        rows = self._rows(f"SELECT record FROM {self._schema}decisions {which}", values)  # noqa: S608 - our own names
        return decode_records([text for (text,) in rows], DecisionRecord, self._name)

    def _open(self) -> Any:
        """Return the connection, a new one where there is none.

        Raises:
            StoreError: There can be none, or there could be none a moment ago: a broken disk must not be tried
                thousands of times, nor a server that is away.
        """
        if self._connection is not None:
            return self._connection
        # Thousands of decisions may wait to be written.
        if self._refused is not None and time.monotonic() < self._refused[0]:
            raise StoreError(self._refused[1])

        try:
            self._connection = self._connect()
        except self.opening_errors as error:
            failure = error if isinstance(error, StoreError) else self._failure(error, "opened")
            self._refused = (time.monotonic() + RETRY_S, str(failure))
            raise failure from error

        self._refused = None
        return self._connection

    def _require_known(self, version: int) -> None:
        """Require a database that no newer gpusage has changed.

        Raises:
            StoreError: Its schema has a higher number than ours.
        """
        if version > schema_version():
            message = (
                f"Store {self._name} must have a schema of at most version {schema_version()}; got {version}. "
                "Update gpusage if a newer one wrote it; else move it aside, or name another one in [store] url."
            )
            raise StoreError(message)

    def _failure(self, error: Exception, rule: str) -> StoreError:
        return StoreError(f"Store {self._name} must be {rule}; got: {describe(error)}. {self.next_step}")


def describe(error: Exception) -> str:
    """Return a database's own words; pg8000 raises with the fields of PostgreSQL's message."""
    fields = error.args[0] if error.args else None
    return " ".join(str(fields.get("M", fields) if isinstance(fields, dict) else error).split())


def _from_origins(origins: Sequence[str]) -> tuple[str, Values]:
    """Return the condition that a decision comes from one of *origins*, and its values."""
    values: Values = {f"origin{i}": origin for i, origin in enumerate(origins)}
    return f"WHERE origin IN ({', '.join(f':{name}' for name in values)})" if values else "WHERE TRUE", values
