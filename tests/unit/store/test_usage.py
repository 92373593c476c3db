"""What jobs really did, in the store."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from gpusage.store.decisions import DecisionStore, StoreError
from gpusage.store.opening import open_store
from gpusage.store.rows import Observation, UsageQuery
from gpusage_hooks.types import JobIdentity
from records import RECORD, USAGE

DECIDED = replace(RECORD, number=USAGE.number)
Opened = Callable[..., DecisionStore]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Return what opens the one store of the test, and close all of them at the end."""
    with ExitStack() as stack:
        yield lambda **rest: stack.enter_context(closing(open_store(f"sqlite:///{tmp_path}/d.db", **rest)))


def test_usage_comes_back_with_its_decision(opened: Opened) -> None:
    """From another connection, as a report reads it while the daemon writes."""
    store = opened()
    store.record(DECIDED)
    store.record_usage([USAGE, replace(USAGE, job_id="8", number="", ended_at_s=1.0)])
    assert opened().usage() == (
        Observation(usage=USAGE, decision=DECIDED),
        Observation(usage=replace(USAGE, job_id="8", number="", ended_at_s=1.0), decision=None),
    )


def test_a_decision_without_a_number_belongs_to_no_job(opened: Opened) -> None:
    """Records of older stores have none, and jobs that carry no mark have none."""
    store = opened()
    store.record(RECORD)
    store.record_usage([replace(USAGE, number="")])
    assert [observed.decision for observed in store.usage()] == [None]


@pytest.mark.parametrize(
    ("manager", "user", "user_id", "own"),
    [
        ("slurm", "ada", None, True),
        ("slurm", "1000", "1000", True),
        ("slurm", "1001", "1000", False),
        ("slurm", "1001", None, True),  # as older releases kept it
        ("slurm", "bob", "1000", False),
        ("yarn", "ada", None, False),
    ],
)
def test_a_number_that_is_another_user_s_leads_to_no_decision(
    opened: Opened,
    manager: str,
    user: str,
    user_id: str | None,
    own: bool,  # a case
) -> None:
    """Where users write the number themselves, they may write any."""
    store = opened()
    identity = JobIdentity(fingerprint="f", user=user)
    store.record(replace(DECIDED, manager=manager, identity=identity))
    store.record_usage([replace(USAGE, user_id=user_id)])
    (observed,) = store.usage()
    assert (observed.decision is not None) == own


def test_usage_is_asked_for_by_time_user_job_and_decision(opened: Opened) -> None:
    store = opened()
    other = replace(USAGE, job_id="8", number="69215f4a0c3f", user="bob", ended_at_s=USAGE.ended_at_s + 10)
    store.record_usage([USAGE, other])

    def usage(**question: object) -> list[str]:
        return [observed.usage.job_id for observed in store.usage(UsageQuery(**question))]  # type: ignore[arg-type]

    assert usage() == ["8", USAGE.job_id]
    assert usage(count=1) == usage(user="bob") == usage(number="69215f4a0c3f") == ["8"]
    assert usage(since_s=USAGE.ended_at_s + 5) == usage(job_id="8") == ["8"]
    assert usage(user="bob", job_id=USAGE.job_id) == []


def test_one_user_s_flood_leaves_room_for_the_others(opened: Opened) -> None:
    """An array of short jobs, or of long ones, must not drive out what others' runs showed."""
    store = opened()
    long = [
        replace(USAGE, job_id=f"{user}{i}", user=user, started_at_s=i, ended_at_s=i + 600.0)
        for user in ("ada", "bob")
        for i in range(5 if user == "ada" else 1)
    ]
    short = [replace(USAGE, job_id=str(i), user="eve", started_at_s=1e6, ended_at_s=1e6 + 1) for i in range(30)]
    starved = replace(short[0], job_id="starved", outcome="out_of_memory")
    store.record_usage([*long, *short, starved])
    question = UsageQuery(least_run_s=60.0, count_per_user=2, count=4)
    assert [each.usage.job_id for each in store.usage(question)] == ["starved", "ada4", "ada3", "bob0"]


def test_jobs_without_a_decision_leave_room_for_those_with_one(opened: Opened) -> None:
    """They count in reports, and teach nothing."""
    store = opened()
    unmarked = [replace(USAGE, number="", job_id=str(i), ended_at_s=USAGE.ended_at_s + i) for i in range(1, 5)]
    store.record_usage([USAGE, *unmarked])
    question = UsageQuery(count=3, count_per_user=3, only_decided=True)
    assert [each.usage.job_id for each in store.usage(question)] == [USAGE.job_id]


def test_the_same_run_is_kept_once_with_what_is_known_last_and_a_requeued_job_has_two(opened: Opened) -> None:
    """The daemon may hear of a run twice: it was restarted between."""
    store = opened()
    store.record_usage([USAGE, USAGE])
    died = replace(USAGE, outcome="out_of_memory")
    store.record_usage([died])
    assert [observed.usage for observed in store.usage()] == [died]
    again = replace(USAGE, started_at_s=USAGE.started_at_s + 100, ended_at_s=USAGE.ended_at_s + 100)
    store.record_usage([again])
    assert [observed.usage for observed in store.usage(UsageQuery(job_id=USAGE.job_id))] == [again, died]


def test_usage_that_is_too_old_is_forgotten_little_by_little(opened: Opened) -> None:
    opened().record_usage([replace(USAGE, job_id=str(job), ended_at_s=float(job)) for job in range(5)])
    store = opened(keep_days=1)
    store.record_usage([replace(USAGE, ended_at_s=time.time())])
    assert len(store.usage()) == 6 - 3
    store.record_usage([replace(USAGE, job_id="9", ended_at_s=time.time())])
    assert len(store.usage()) == 2


def test_a_text_that_is_no_unicode_is_kept_with_question_marks(opened: Opened) -> None:
    store = opened()
    store.record_usage([replace(USAGE, job_name="\udc80")])
    assert [observed.usage.job_name for observed in store.usage()] == ["?"]


def test_a_row_that_is_no_usage_hides_no_other(tmp_path: Path, opened: Opened) -> None:
    """Somebody edited the file by hand."""
    store = opened()
    store.record_usage([USAGE, replace(USAGE, job_id="8")])
    with closing(sqlite3.connect(tmp_path / "d.db")) as connection:
        connection.execute("UPDATE usage SET record = '{}' WHERE job_id = '8'")
        connection.commit()
    assert [observed.usage for observed in store.usage()] == [USAGE]


def test_asking_where_there_is_no_store_makes_none(tmp_path: Path, opened: Opened) -> None:
    assert opened().usage(UsageQuery(user="ada")) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("in the way")
    with (
        closing(open_store(f"sqlite:///{tmp_path}/a/d.db")) as store,
        pytest.raises(StoreError, match="must be opened"),
    ):
        store.record_usage([USAGE])


def test_a_record_is_packed_and_one_of_before_is_read_as_it_is(tmp_path: Path, opened: Opened) -> None:
    store = opened()
    store.record(DECIDED)
    store.record_usage([USAGE, replace(USAGE, job_id="8")])
    plain, damaged = msgspec.json.encode(USAGE).decode(), "AAAA"
    with closing(sqlite3.connect(tmp_path / "d.db")) as connection, connection:
        ((text,),) = connection.execute("SELECT record FROM decisions").fetchall()
        assert len(text) < len(msgspec.json.encode(DECIDED)) / 2
        connection.execute("UPDATE usage SET record = ? WHERE job_id = '7'", (plain,))
        connection.execute("UPDATE usage SET record = ? WHERE job_id = '8'", (damaged,))
    assert opened().usage() == (Observation(usage=USAGE, decision=DECIDED),)
