"""Records before answers, and answers without records where those take too long."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.service import recorder
from gpusage.service.recorder import Recorder, log_line
from gpusage.store.decisions import DecisionStore
from gpusage.store.opening import open_store
from gpusage_hooks.types import Code, Decision, DecisionRecord, GpuRequest, Rendered

RECORD = DecisionRecord(
    decided_at_s=1.0,
    manager="slurm",
    origin="uid 1000",
    mode="enforce",
    decision=Decision(code=Code.KEEP, request=GpuRequest(gpu_count=1), reasons=("a reason",), plugin="test"),
    rendered=Rendered(before="gres/gpu:1", after="gres/gpu:1", fields={}),
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


def made(path: Path, limit_s: float) -> Recorder:
    """Return a recorder that runs."""
    made = Recorder(open_store(f"sqlite:///{path}"), asyncio.get_running_loop(), limit_s=limit_s)
    made.start()
    return made


def test_the_record_is_in_the_store_before_the_answer_leaves(path: Path, reader: DecisionStore) -> None:
    """Seen by another connection at the moment of the release, for each of many that wait together."""

    async def keep() -> list[int]:
        writer, left = made(path, limit_s=30), []
        for number in range(1, 51):
            writer.keep(replace(RECORD, origin=str(number)), lambda: left.append(len(reader.latest(100))))
        await writer.close()
        assert (writer.counts.kept, writer.counts.late, writer.counts.lost) == (50, 0, 0)
        return left

    assert asyncio.run(keep()) == [50] * 50
    assert [record.origin for record in reader.latest(2)] == ["50", "49"]


def test_the_answer_leaves_after_the_limit_and_the_record_follows(path: Path, reader: DecisionStore) -> None:
    """Another process has locked the file; the answer is released once, not twice."""
    reader.record(RECORD)
    left: list[str] = []

    async def keep() -> None:
        writer = made(path, limit_s=0.01)
        with closing(sqlite3.connect(path, isolation_level=None)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            answered = asyncio.Event()
            writer.keep(RECORD, lambda: (left.append("answer"), answered.set()))
            await asyncio.wait_for(answered.wait(), 0.9)  # SQLite waits for the lock for a second
            assert (writer.counts.late, writer.counts.kept, writer.counts.waiting) == (1, 0, 1)
            lock.execute("COMMIT")
        await writer.close()
        assert (writer.counts.late, writer.counts.kept, writer.counts.waiting) == (1, 1, 0)

    asyncio.run(keep())
    assert left == ["answer"]
    assert len(reader.latest(5)) == 2


def test_what_cannot_be_written_is_counted_as_lost_and_the_answer_leaves(tmp_path: Path) -> None:
    """The folder is a file."""
    (tmp_path / "file").touch()

    async def keep() -> None:
        writer, left = made(tmp_path / "file" / "d.db", limit_s=30), []
        writer.keep(RECORD, lambda: left.append("answer"))
        await writer.close()
        assert left == ["answer"]
        assert (writer.counts.kept, writer.counts.lost) == (0, 1)
        assert writer.counts.error is not None

    asyncio.run(keep())


def test_too_many_that_wait_are_lost_and_their_answers_leave(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded even where the disk hangs."""
    monkeypatch.setattr(recorder, "WAITING_LIMIT", 3)

    async def keep() -> None:
        writer, left = made(path, limit_s=30), []
        for _ in range(4):
            writer.keep(RECORD, lambda: left.append("answer"))
        await writer.close()
        assert left == ["answer"] * 4
        assert (writer.counts.kept, writer.counts.lost) == (0, 4)

    asyncio.run(keep())


def test_the_log_has_one_printable_line_a_decision() -> None:
    """Whatever a user called the model."""
    line = log_line(replace(RECORD, model="x\n\x1b[2Jy"))
    assert line == "slurm uid 1000: KEEP (enforce) gres/gpu:1 -> gres/gpu:1 | x??[2Jy | a reason"
