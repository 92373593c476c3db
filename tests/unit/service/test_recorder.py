"""Decisions are kept or counted as lost, and nobody waits for that."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gpusage.service import recorder
from gpusage.service.recorder import RecordCounts, Recorder, log_line
from gpusage.store.decisions import DecisionStore, StoreError
from gpusage.store.opening import open_store
from gpusage.store.sqlite import SqliteStore
from gpusage_hooks.types import Code, Decision, DecisionRecord, GpuRequest, RenderedDecision

RECORD = DecisionRecord(
    decided_at_s=1.0,
    manager="slurm",
    origin="uid 1000",
    mode="enforce",
    decision=Decision(code=Code.KEEP, request=GpuRequest(gpu_count=1), reasons=("a reason",), plugin="test"),
    rendered=RenderedDecision(before="gres/gpu:1", after="gres/gpu:1", fields={}),
    model="x.onnx",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the store is."""
    return tmp_path / "d.db"


@pytest.fixture
def reader(path: Path) -> Iterator[DecisionStore]:
    """Yield a second connection to the store."""
    with closing(open_store(f"sqlite:///{path}")) as store:
        yield store


def running_recorder(path: Path) -> Recorder:
    """Return a recorder that runs."""
    made = Recorder(open_store(f"sqlite:///{path}"), asyncio.get_running_loop())
    made.start()
    return made


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have decisions handed over in the turn after their answer."""
    monkeypatch.setattr(recorder, "BATCH_LIMIT", 1)


def test_decisions_that_come_close_together_are_handed_over_together(
    path: Path, reader: DecisionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are enough; one alone follows after a while."""
    monkeypatch.setattr(recorder, "BATCH_LIMIT", 2)

    async def keep() -> list[int]:
        writer = Recorder(open_store(f"sqlite:///{path}"), asyncio.get_running_loop())
        batches = []
        for _ in range(3):
            writer.record(lambda: RECORD)
            await asyncio.sleep(0)
            batches.append(writer._queue.qsize())
        assert writer.counts.waiting == 3
        await asyncio.sleep(2 * recorder.BATCH_DELAY_S)
        batches.append(writer._queue.qsize())
        writer.start()
        await writer.close()
        return batches

    assert asyncio.run(keep()) == [0, 1, 1, 2]
    assert len(reader.latest(5)) == 3


def test_a_decision_of_which_no_record_can_be_made_costs_no_other(
    path: Path, reader: DecisionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "BATCH_LIMIT", 2)

    def fail() -> DecisionRecord:
        message = "a field that cannot be read"
        raise ValueError(message)

    async def record_both() -> RecordCounts:
        writer = running_recorder(path)
        writer.record(fail)
        writer.record(lambda: RECORD)
        await asyncio.sleep(0)
        await writer.close()
        await asyncio.sleep(0)
        return writer.counts

    assert asyncio.run(record_both()) == RecordCounts(written=1, lost=1)
    assert len(reader.latest(5)) == 1


def test_decisions_of_one_turn_are_kept_in_their_order(path: Path, reader: DecisionStore) -> None:
    """All of them are in the store when the recorder has closed."""

    async def keep() -> None:
        writer = running_recorder(path)
        for number in range(1, 51):
            writer.record(partial(replace, RECORD, origin=str(number)))
        await writer.close()
        assert (writer.counts.written, writer.counts.waiting, writer.counts.lost) == (50, 0, 0)

    asyncio.run(keep())
    assert [record.origin for record in reader.latest(2)] == ["50", "49"]


def test_a_store_that_another_process_has_locked_keeps_nobody_waiting(path: Path, reader: DecisionStore) -> None:
    """The record follows when the lock is gone."""
    reader.record(RECORD)

    async def keep() -> None:
        writer = running_recorder(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            writer.record(lambda: RECORD)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert (writer.counts.written, writer.counts.waiting) == (0, 1)
            lock.execute("COMMIT")
        await writer.close()
        assert (writer.counts.written, writer.counts.waiting) == (1, 0)

    asyncio.run(keep())
    assert len(reader.latest(5)) == 2


def test_what_cannot_be_written_is_counted_as_lost(tmp_path: Path) -> None:
    """The folder is a file."""
    (tmp_path / "file").touch()

    async def keep() -> None:
        writer = running_recorder(tmp_path / "file" / "d.db")
        writer.record(lambda: RECORD)
        await writer.close()
        assert (writer.counts.written, writer.counts.lost) == (0, 1)
        assert writer.counts.error is not None

    asyncio.run(keep())


def test_too_many_that_wait_are_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded even where the disk hangs."""
    monkeypatch.setattr(recorder, "WAITING_LIMIT", 3)

    async def keep() -> None:
        writer = running_recorder(path)
        for _ in range(4):
            writer.record(lambda: RECORD)
        await writer.close()
        assert (writer.counts.written, writer.counts.lost) == (0, 4)

    asyncio.run(keep())


def test_many_that_wait_are_written_in_several_transactions(path: Path, reader: DecisionStore) -> None:
    """Rows take memory until they are written; and who asks meanwhile is slowed down."""

    async def keep() -> None:
        writer = Recorder(open_store(f"sqlite:///{path}"), asyncio.get_running_loop())
        for number in range(recorder.BEHIND_LIMIT):
            writer.record(partial(replace, RECORD, origin=str(number)))
            await asyncio.sleep(0)
        assert writer.is_behind
        assert len(writer._next_records()[0]) == recorder.TRANSACTION_LIMIT
        writer.start()
        await writer.close()
        assert not writer.is_behind

    asyncio.run(keep())
    assert len(reader.latest(2000)) == recorder.BEHIND_LIMIT - recorder.TRANSACTION_LIMIT


def test_a_flood_that_loses_records_is_slowed_down_all_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lost is in the status, as what a store refuses is; but the store only needs time."""
    monkeypatch.setattr(recorder, "WAITING_LIMIT", 3)
    monkeypatch.setattr(recorder, "BEHIND_LIMIT", 3)

    async def keep() -> None:
        writer = Recorder(open_store(f"sqlite:///{path}"), asyncio.get_running_loop())
        for _ in range(4):
            writer.record(lambda: RECORD)
            await asyncio.sleep(0)
        assert (writer.counts.waiting, writer.counts.lost) == (3, 1)
        assert writer.counts.error is not None
        assert writer.is_behind
        writer.start()
        await writer.close()

    asyncio.run(keep())


class Refusing(SqliteStore):
    """A store that is away for the first *away* times, and never takes the records called ``poison``."""

    def __init__(self, path: Path, away: int) -> None:
        super().__init__(path)
        self.away = away
        self.taken: list[str] = []

    def record_all(self, records: Sequence[DecisionRecord]) -> None:
        """Refuse, or remember."""
        self.away -= 1
        if self.away >= 0 or any(record.origin.startswith("poison") for record in records):
            message = "away"
            raise StoreError(message)
        self.taken += [record.origin for record in records]


async def settled(store: Refusing, *origins: str) -> RecordCounts:
    """Return the counts once nothing waits any more, or only what is never taken."""
    writer = Recorder(store, asyncio.get_running_loop())
    writer.start()
    for origin in origins:
        writer.record(partial(replace, RECORD, origin=origin))
        await asyncio.sleep(0.01)
    taken = sum(not origin.startswith("poison") for origin in origins)
    for _ in range(1000):
        if writer.counts.written == taken:
            break
        await asyncio.sleep(0.01)
    await writer.close()
    return writer.counts


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon."""
    monkeypatch.setattr(recorder, "RETRY_S", 0.01)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("away", [1, 3, 20])
def test_what_the_store_refuses_is_tried_again_until_it_takes_it(path: Path, away: int) -> None:
    """PostgreSQL that stopped for 8 s cost 206 records, though 20,000 could wait."""
    store = Refusing(path, away)
    counts = asyncio.run(settled(store, *"abcdef"))
    assert (counts.written, counts.waiting, counts.lost, counts.error) == (6, 0, 0, None)
    assert sorted(store.taken) == [*"abcdef"]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("origins", [("poison", "a", "b"), ("a", "poison", "b"), ("poison", "poison", "a", "b")])
def test_what_the_store_never_takes_stops_nothing_else(path: Path, origins: tuple[str, ...]) -> None:
    store = Refusing(path, 0)
    counts = asyncio.run(settled(store, *origins))
    assert (counts.written, counts.waiting, counts.lost) == (2, 0, len(origins) - 2)
    assert sorted(store.taken) == ["a", "b"]


def test_the_log_has_one_printable_line_a_decision() -> None:
    """Whatever a user called the model."""
    line = log_line(replace(RECORD, model="x\n\x1b[2Jy"))
    assert line == "slurm uid 1000: KEEP (enforce) gres/gpu:1 -> gres/gpu:1 | x??[2Jy | a reason"
