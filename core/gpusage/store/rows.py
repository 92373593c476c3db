"""The tables of the store, for SQLite and PostgreSQL alike: the steps that make them, their rows, questions on usage.

A row holds its record as packed JSON, with the columns that people ask for beside it. The tables are numbered steps
from an empty database.

Invariants:

1. A step that has been released never changes: databases that took it exist. A new column is a new step at the end.
2. A database has taken the steps up to the number that it holds; a newer gpusage's number is never lowered.
3. The steps that a database lacks are taken in one transaction, by one client at a time.
"""

from __future__ import annotations

import logging
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

from gpusage_hooks.types import DecisionRecord, Usage
from gpusage_hooks.units import DAY_S

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        (
            "CREATE TABLE IF NOT EXISTS {schema}decisions ({id}, decided_at_s DOUBLE PRECISION NOT NULL,"
            " manager TEXT NOT NULL, mode TEXT NOT NULL, code TEXT NOT NULL, origin TEXT NOT NULL, model TEXT,"
            " before TEXT NOT NULL, after TEXT NOT NULL, record TEXT NOT NULL, number TEXT)"
        ),
        # A decision is found by the number in its job's annotation.
        "CREATE INDEX IF NOT EXISTS numbers ON {schema}decisions (number)",
        (
            "CREATE TABLE IF NOT EXISTS {schema}usage ({id}, number TEXT NOT NULL, manager TEXT NOT NULL,"
            " job_id TEXT NOT NULL, owner TEXT NOT NULL, started_at_s DOUBLE PRECISION NOT NULL,"
            " ended_at_s DOUBLE PRECISION NOT NULL, outcome TEXT NOT NULL, record TEXT NOT NULL)"
        ),
        "CREATE UNIQUE INDEX IF NOT EXISTS usage_runs ON {schema}usage (manager, job_id, started_at_s, number)",
        "CREATE INDEX IF NOT EXISTS usage_ends ON {schema}usage (ended_at_s)",
        "CREATE INDEX IF NOT EXISTS usage_numbers ON {schema}usage (number)",
    ),
    (
        # What a report needs of a day, so that one on a month reads no runs; and what it reads of the other days.
        "CREATE TABLE {schema}days ({id}, day_s DOUBLE PRECISION NOT NULL UNIQUE, report TEXT NOT NULL)",
        "CREATE INDEX decision_times ON {schema}decisions (decided_at_s)",
        "CREATE INDEX usage_owners ON {schema}usage (owner, ended_at_s)",
    ),
    (
        # Beside the days' reports, which go when a late run comes: nobody can tell later which cluster wrote here on a
        # day, and with how many GPUs.
        (
            "CREATE TABLE {schema}cluster_days ({id}, day_s DOUBLE PRECISION NOT NULL, manager TEXT NOT NULL,"
            " name TEXT NOT NULL, gpu_count INTEGER NOT NULL, UNIQUE (day_s, manager, name))"
        ),
    ),
)
INSERTED_ROWS = 90
"""Rows of one statement: this hands the interpreter over once, not once per row; the thread that answers runs on.
SQLite before 3.32 takes 999 parameters, ten a row."""
DECISION_COLUMNS = ("decided_at_s", "manager", "mode", "code", "origin", "model", "before", "after", "record", "number")
USAGE_COLUMNS = ("number", "manager", "job_id", "owner", "started_at_s", "ended_at_s", "outcome", "record")
Row = tuple[float, str, str, str, str, str | None, str, str, str, str]
"""Of a decision, by `DECISION_COLUMNS`."""
Values = dict[str, float | str | None]
"""By the names of a statement's parameters."""
Record = TypeVar("Record", DecisionRecord, Usage)

# What no two runs share: a requeued job starts again.
_RUN = "manager, job_id, started_at_s, number"
RECORDS = (
    "u.record, (SELECT d.record FROM {schema}decisions d WHERE d.number = u.number AND u.number <> ''"
    " ORDER BY d.id DESC LIMIT 1)"
)
"""What `usage_query` selects: a run's record, and that of its decision."""
# Never changes: a row is read with the dictionary that it was written with. Another one is another file.
_DICTIONARY = files("gpusage.store").joinpath("dictionary.txt").read_bytes()
_LONG_ENOUGH = "(u.ended_at_s - u.started_at_s >= :least_run_s OR u.outcome IN ('out_of_memory', 'failed'))"
_NEWEST_PER_USER = (
    "u.id IN (SELECT id FROM (SELECT u.id, ROW_NUMBER() OVER"
    " (PARTITION BY u.owner ORDER BY u.ended_at_s DESC, u.id DESC) AS turn"
    " FROM {schema}usage u WHERE {where}) turns WHERE turn <= :count_per_user)"
)
_DELETION = (
    "DELETE FROM {schema}{table} WHERE id IN (SELECT id FROM {schema}{table} ORDER BY id LIMIT :most)"
    " AND {clock} < :oldest_s"
)
_CLOCKS = {"decisions": "decided_at_s", "usage": "ended_at_s"}
"""Of tables of runs; those of days have ``day_s``."""
_NOUNS = {DecisionRecord: "decision", Usage: "usage"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The usage of a run, with the decision on its job.

    Attributes:
        decision: ``None`` where the job carried no number, or its decision is kept no more.
    """

    usage: Usage
    decision: DecisionRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """The jobs whose usage is requested; ``None`` in a field is no limit.

    Attributes:
        count: At most so many, those that ended last.
        since_s: Those that ended then or later, seconds since 1970.
        job_id: In the manager's own form.
        number: Of the decision.
        manager: Of this workload manager's jobs; with *job_id*, one of few rows is found by an index.
        least_run_s: Those that ran for so long, or failed.
        count_per_user: Of each user at most so many, those that ended last.
        only_decided: Only those whose jobs carry the number of a decision.
        ids: Of the rows, as the store numbers them.
    """

    count: int | None = None
    since_s: float | None = None
    user: str | None = None
    job_id: str | None = None
    number: str | None = None
    manager: str | None = None
    least_run_s: float | None = None
    count_per_user: int | None = None
    only_decided: bool = False
    ids: Sequence[int] | None = None


def schema_version() -> int:
    """Return the number of a database that has taken every step."""
    return len(MIGRATIONS)


def statements_since(version: int, *, schema: str, identity: str) -> tuple[str, ...]:
    """Return the statements that bring a database from *version*, 0 for an empty one, to `schema_version`.

    Args:
        version: The number that the database holds.
        schema: Before each table's name: empty, or a name and a dot.
        identity: The definition of the column ``id``.
    """
    return tuple(text.format(schema=schema, id=identity) for step in MIGRATIONS[version:] for text in step)


def decision_row(record: DecisionRecord) -> Row:
    """Return *record* by `DECISION_COLUMNS`."""
    return (
        record.decided_at_s,
        record.manager,
        record.mode,
        record.decision.code.value,
        replace_invalid_unicode(record.origin),
        None if record.model is None else replace_invalid_unicode(record.model),
        replace_invalid_unicode(record.rendered.before),
        replace_invalid_unicode(record.rendered.after),
        encode_record(record),
        record.number,
    )


def decision_insertions(schema: str, records: Sequence[DecisionRecord]) -> Iterator[tuple[str, Values]]:
    """Yield statements that add *records*, `INSERTED_ROWS` each."""
    for begin in range(0, len(records), INSERTED_ROWS):
        values, marks = Values(), list[str]()
        for number, row in enumerate(map(decision_row, records[begin : begin + INSERTED_ROWS])):
            own = {f"{name}_{number}": value for name, value in zip(DECISION_COLUMNS, row, strict=True)}
            marks.append(f"(:{', :'.join(own)})")
            values |= own
        yield f"INSERT INTO {schema}decisions ({', '.join(DECISION_COLUMNS)}) VALUES {', '.join(marks)}", values  # noqa: S608 - our names


def decode_records(texts: Iterable[str], kind: type[Record], store: str) -> tuple[Record, ...]:
    """Return the records of *kind* in columns ``record``; a strange row of *store* is left out and hides no other."""
    records = []
    for text in texts:
        try:
            records.append(_DECODERS[kind].decode(unpacked(text)))
        except (msgspec.MsgspecError, TypeError, ValueError, zlib.error) as error:  # noqa: PERF203 - each row for itself; it may hold no text
            _log.warning("store %s holds a row that is no %s (%s): left out", store, _NOUNS[kind], error)
    return tuple(records)


def encode_record(record: DecisionRecord | Usage) -> str:
    """Return *record* as packed JSON."""
    try:
        return packed(_ENCODER.encode(record))
    except UnicodeEncodeError:
        # A user's text may be no Unicode, such as half of a surrogate pair: keep the rest.
        plain = msgspec.to_builtins(record, enc_hook=_encodable)
        return packed(_ENCODER.encode(_with_valid_unicode(plain)))


def packed(document: bytes) -> str:
    """Return a JSON *document* as a text that any database can hold, of a quarter of its length.

    Records are short and alike, so they shrink by what they share with `_DICTIONARY`.
    """
    packer = zlib.compressobj(zdict=_DICTIONARY)
    return b64encode(packer.compress(document) + packer.flush()).decode()


def unpacked(text: str) -> bytes:
    """Return the JSON document in *text*; no Base64 begins like an object, which older rows hold as it is.

    Raises:
        ValueError: It holds none; zlib has an error of its own.
        TypeError: It is no text.
    """
    if not isinstance(text, str):
        message = f"a record must be a text; got {type(text).__name__}"
        raise TypeError(message)
    if text.startswith("{"):
        return text.encode()
    return zlib.decompressobj(zdict=_DICTIONARY).decompress(b64decode(text, validate=True))


def _with_valid_unicode(value: object) -> object:
    """Return a JSON value with every text made valid Unicode."""
    if isinstance(value, str):
        return replace_invalid_unicode(value)
    if isinstance(value, Mapping):
        return {replace_invalid_unicode(key): _with_valid_unicode(item) for key, item in value.items()}
    return [_with_valid_unicode(item) for item in value] if isinstance(value, (list, tuple)) else value


def replace_invalid_unicode(text: str) -> str:
    """Return *text* with a question mark for each character that UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _encodable(value: object) -> object:
    """Return a value of a type that msgspec lacks as one of a type that it has."""
    if isinstance(value, Mapping):
        return dict(value)
    message = f"Objects of type {type(value).__name__} are not supported"
    raise NotImplementedError(message)


def usage_upsert(schema: str) -> str:
    """Return the statement that keeps one row of `usage_values`; the same run again replaces its row."""
    # SQLite since 3.24, and PostgreSQL, have ON CONFLICT.
    marks = ", ".join(f":{name}" for name in USAGE_COLUMNS)
    fresh = ", ".join(f"{name} = excluded.{name}" for name in ("owner", "ended_at_s", "outcome", "record"))
    insertion = f"INSERT INTO {schema}usage ({', '.join(USAGE_COLUMNS)}) VALUES ({marks})"  # noqa: S608 - our names
    return f"{insertion} ON CONFLICT ({_RUN}) DO UPDATE SET {fresh}"


def usage_values(usage: Usage) -> Values:
    """Return *usage* by the names of its columns."""
    texts = {
        "number": usage.number,
        "manager": usage.manager,
        "job_id": usage.job_id,
        "owner": usage.user,
        "outcome": usage.outcome,
        "record": encode_record(usage),
    }
    return {name: replace_invalid_unicode(text) for name, text in texts.items()} | {
        "started_at_s": usage.started_at_s,
        "ended_at_s": usage.ended_at_s,
    }


def usage_query(schema: str, question: UsageQuery, selected: str = RECORDS) -> tuple[str, Values]:
    """Return the statement that answers *question*, newest first, and its values by name; *selected* of each row."""
    limits: dict[str, tuple[str, float | str | None]] = {
        "since_s": ("u.ended_at_s >= :since_s", question.since_s),
        "owner": ("u.owner = :owner", question.user),
        "job_id": ("u.job_id = :job_id", question.job_id),
        "number": ("u.number = :number", question.number),
        "manager": ("u.manager = :manager", question.manager),
        "least_run_s": (_LONG_ENOUGH, question.least_run_s),
    }
    values: Values = {name: value for name, (_, value) in limits.items() if value is not None}

    decided = ["u.number <> ''"] if question.only_decided else []
    decided += [] if question.ids is None else [among("u.id", question.ids)]
    # TRUE needs no case for a question without limits.
    where = " AND ".join(["TRUE", *decided, *(limits[name][0] for name in values)])
    if question.count_per_user is not None:
        where = _NEWEST_PER_USER.format(schema=schema, where=where)
        values |= {"count_per_user": question.count_per_user}

    selection = f"SELECT {selected.format(schema=schema)} FROM {schema}usage u"  # noqa: S608 - our names
    statement = f"{selection} WHERE {where} ORDER BY u.ended_at_s DESC, u.id DESC"
    if question.count is None:
        return statement, values
    return f"{statement} LIMIT :count", values | {"count": question.count}


def among(column: str, ids: Sequence[int]) -> str:
    """Return the condition that *column* holds one of *ids*."""
    return f"{column} IN ({', '.join(map(str, ids)) or 'NULL'})"


def forget_days(schema: str, usages: Iterable[Usage]) -> tuple[tuple[str, Values], ...]:
    """Return the statements that delete the reports of the days of *usages*, before and after these are recorded."""
    deletion = f"DELETE FROM {schema}days WHERE"  # noqa: S608 - our schema
    # A run that is recorded again may have ended on another day by what was known before.
    replaced = (
        f"{deletion} EXISTS (SELECT 1 FROM {schema}usage u WHERE u.manager = :manager AND u.job_id = :job_id"  # noqa: S608 - our schema
        " AND u.started_at_s = :started_at_s AND u.number = :number"
        f" AND u.ended_at_s >= {schema}days.day_s AND u.ended_at_s < {schema}days.day_s + {DAY_S})"
    )
    days_s = {usage.ended_at_s // DAY_S * DAY_S for usage in usages}
    return (
        *((f"{deletion} day_s = :day_s", {"day_s": day_s}) for day_s in sorted(days_s)),
        *((replaced, {name: getattr(usage, name) for name in _RUN.split(", ")}) for usage in usages),
    )


def deletion(schema: str, table: str, *, keep_days: float, new_count: int) -> tuple[str, Values]:
    """Return the statement that deletes old rows of *table*, a few more than *new_count*, and its values.

    So an old store shrinks little by little, and no write ever waits long.
    """
    statement = _DELETION.format(schema=schema, table=table, clock=_CLOCKS.get(table, "day_s"))
    return statement, {"most": 2 * new_count + 1, "oldest_s": time.time() - keep_days * DAY_S}


def decode_observations(rows: Iterable[tuple[str, str | None]], store: str) -> tuple[Observation, ...]:
    """Return the observations in rows of `usage_query`; a strange row of *store* is left out and hides no other."""
    observations = []
    for text, decision in rows:
        for usage in decode_records([text], Usage, store):
            # A decision that cannot be read, or is of another's job, costs the run nothing.
            decisions = decode_records([decision] if decision is not None else [], DecisionRecord, store)
            own = [record for record in decisions if is_record_of(usage, record)]
            observations.append(Observation(usage=usage, decision=own[0] if own else None))
    return tuple(observations)


def is_record_of(usage: Usage, record: DecisionRecord) -> bool:
    """Return whether *record* may be of the job: where users name the number themselves, they may name another's."""
    user = record.identity.user if record.identity else ""

    # A submission may name its user by a number that the manager's usage lacks.
    is_same = user.isdecimal() if usage.user_id is None else user == usage.user_id
    return record.manager == usage.manager and (user in ("", usage.user) or is_same)


_ENCODER = msgspec.json.Encoder(enc_hook=_encodable)
# Made before there are threads, as `gpusage.boundary.typed_documents` has it.
_DECODERS: Mapping[type, Any] = {kind: msgspec.json.Decoder(kind) for kind in _NOUNS}
