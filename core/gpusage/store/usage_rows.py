"""What jobs really did as rows of the store, and the statements on them that both databases know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpusage.store.rows import decode_records, encode_record, replace_invalid_unicode
from gpusage_hooks.types import DecisionRecord, Usage

USAGE_COLUMNS = ("number", "manager", "job_id", "owner", "started_at_s", "ended_at_s", "outcome", "record")
"""As `migrations` makes them."""
_RUN = "manager, job_id, started_at_s, number"
"""What no two runs share: a requeued job starts again, and several clusters may write into one store."""
_JOINED = (
    "SELECT u.record, (SELECT d.record FROM {schema}decisions d WHERE d.number = u.number AND u.number <> ''"
    " ORDER BY d.id DESC LIMIT 1) FROM {schema}usage u"
)
_LONG_ENOUGH = "(u.ended_at_s - u.started_at_s >= :least_run_s OR u.outcome IN ('out_of_memory', 'failed'))"
_NEWEST_PER_USER = (
    "u.id IN (SELECT id FROM (SELECT u.id, ROW_NUMBER() OVER"
    " (PARTITION BY u.owner ORDER BY u.ended_at_s DESC, u.id DESC) AS turn"
    " FROM {schema}usage u WHERE {where}) turns WHERE turn <= :count_per_user)"
)
Values = dict[str, float | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a job really did, with what was decided of it.

    Attributes:
        decision: ``None`` where the job carried no number, or its decision is kept no more.
    """

    usage: Usage
    decision: DecisionRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """Which jobs' usage is asked for; what is ``None`` limits nothing.

    Attributes:
        count: At most so many, those that ended last.
        since_s: Those that ended then or later, seconds since 1970.
        job_id: In the manager's own form.
        number: Of the decision.
        manager: Of this workload manager's jobs; with *job_id*, one of few rows is found by an index.
        least_run_s: Those that ran for so long, or failed.
        count_per_user: Of each user at most so many, those that ended last.
        only_decided: Only those whose jobs carry the number of a decision.
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


def usage_upsert(schema: str) -> str:
    """Return the statement that keeps one row of `usage_values`; the same run again replaces what was known of it."""
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


def usage_query(schema: str, question: UsageQuery) -> tuple[str, Values]:
    """Return the statement that answers *question*, newest first, and its values by name."""
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
    where = " AND ".join(["TRUE", *decided, *(limits[name][0] for name in values)])
    if question.count_per_user is not None:
        where = _NEWEST_PER_USER.format(schema=schema, where=where)
        values |= {"count_per_user": question.count_per_user}
    statement = f"{_JOINED.format(schema=schema)} WHERE {where} ORDER BY u.ended_at_s DESC, u.id DESC"
    if question.count is None:
        return statement, values
    return f"{statement} LIMIT :count", values | {"count": question.count}


def decode_observations(rows: Iterable[tuple[str, str | None]], store: str) -> tuple[Observation, ...]:
    """Return what rows of `usage_query` hold; a strange row of *store* is left out and hides no other."""
    observations = []
    for text, decision in rows:
        for usage in decode_records([text], Usage, store):
            decisions = decode_records([decision] if decision is not None else [], DecisionRecord, store)
            own = [record for record in decisions if is_record_of(usage, record)]
            observations.append(Observation(usage=usage, decision=own[0] if own else None))
    return tuple(observations)


def is_record_of(usage: Usage, record: DecisionRecord) -> bool:
    """Return whether *record* may be of the job: where users name the number themselves, they may name another's."""
    user = record.identity.user if record.identity else ""
    is_same = user.isdecimal() if usage.user_id is None else user == usage.user_id
    return record.manager == usage.manager and (user in ("", usage.user) or is_same)
