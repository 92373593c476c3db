"""Keeps every decision before its answer leaves; if that takes too long, the answer leaves anyway.

Invariants:

1. `Recorder.keep` is called in the event loop, and calls every `release` there, exactly once.
2. One writer thread hears plugins, writes the store and logs; decisions that wait meanwhile are written together.
3. A decision is kept, or it is counted as lost.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from gpusage.error_text import sentence
from gpusage.plain_text import visible
from gpusage.plugins.hooks import Hooks
from gpusage.store.decisions import DecisionStore
from gpusage_hooks.types import DecisionRecord

LIMIT_S = 0.002
WAITING_LIMIT = 20_000

_log = logging.getLogger(__name__)
Release = Callable[[], None]


@dataclass(slots=True)
class Batch:
    """Decisions of one turn of the event loop."""

    records: list[DecisionRecord] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None

    def release(self) -> None:
        """Let the answers go, once."""
        releases, self.releases = self.releases, []
        for release in releases:
            release()


@dataclass(slots=True)
class RecordCounts:
    """What became of the decisions: kept, or lost; late are those whose answer left before; waiting, those in work."""

    kept: int = 0
    late: int = 0
    waiting: int = 0
    lost: int = 0
    error: str | None = None


class Recorder:
    """Keeps decisions.

    Args:
        store: Used in the writer thread alone.
        loop: Where `keep` is called and answers are released.
        hooks: By which plugins hear of each decision; ``None`` where nobody does.
        limit_s: How long an answer waits for its record.
    """

    def __init__(
        self,
        store: DecisionStore,
        loop: asyncio.AbstractEventLoop,
        hooks: Hooks | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.counts = RecordCounts()
        self._store = store
        self._loop = loop
        self._hooks = hooks
        self._limit_s = limit_s
        self._gathered = Batch()
        self._queue: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def keep(self, record: DecisionRecord, release: Release) -> None:
        """Keep *record*, then call *release*; or call it without, when the limit has passed."""
        if not self._gathered.records:
            self._loop.call_soon(self._hand_over)
        self._gathered.records.append(record)
        self._gathered.releases.append(release)

    async def close(self, limit_s: float = 2.0) -> None:
        """Write what waits, and end; what cannot be written within *limit_s* is lost."""
        self._hand_over()
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join, limit_s)

    def _hand_over(self) -> None:
        batch, self._gathered = self._gathered, Batch()
        if self.counts.waiting + len(batch.records) > WAITING_LIMIT:
            self.counts.lost += len(batch.records)
            self.counts.error = f"more than {WAITING_LIMIT} decisions wait to be written"
            batch.release()
            return
        self.counts.waiting += len(batch.records)
        batch.timer = self._loop.call_later(self._limit_s, self._overdue, batch)
        self._queue.put(batch)

    def _overdue(self, batch: Batch) -> None:
        self.counts.late += len(batch.releases)
        batch.release()

    def _finished(self, batches: list[Batch], error: str | None) -> None:
        for batch in batches:
            count = len(batch.records)
            self.counts.waiting -= count
            self.counts.kept += 0 if error else count
            self.counts.lost += count if error else 0
            if batch.timer is not None:
                batch.timer.cancel()
            batch.release()
        self.counts.error = error

    def _run(self) -> None:
        """Write until told to end."""
        self._store.prepare()
        open_ended = True
        while open_ended:
            batches, open_ended = self._next()
            records = [record for batch in batches for record in batch.records]
            self._announce(records)
            error = self._written(records)
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._finished, batches, error)
            _report(records)
        self._store.close()

    def _next(self) -> tuple[list[Batch], bool]:
        """Return every batch that waits, at least one unless this is the end; and whether there may be more."""
        batches: list[Batch] = []
        batch = self._queue.get()
        while batch is not None:
            batches.append(batch)
            try:
                batch = self._queue.get_nowait()
            except queue.Empty:
                return batches, True
        return batches, False

    def _announce(self, records: list[DecisionRecord]) -> None:
        """Let plugins hear of each decision."""
        if self._hooks is None:
            return
        for record in records:
            try:
                self._hooks.decision_made(record)
            except Exception as error:  # noqa: BLE001, PERF203 - a plugin may fail in any way, for one record or all
                _log.warning("a plugin failed to hear of a decision: %s", sentence(error))

    def _written(self, records: list[DecisionRecord]) -> str | None:
        """Return why *records* could not be written, or ``None``."""
        if not records:
            return None
        try:
            self._store.record_all(records)
        except Exception as error:  # noqa: BLE001 - an answer matters more than its record
            if str(error) != self.counts.error:
                _log.warning("decisions are lost: %s", error)
            return str(error)
        return None


def _report(records: list[DecisionRecord]) -> None:
    """Log one line per decision."""
    if records and _log.isEnabledFor(logging.INFO):
        _log.info("%s", "\n".join(map(log_line, records)))


def log_line(record: DecisionRecord) -> str:
    """Return *record* on one line."""
    rendered, decision = record.rendered, record.decision
    line = (
        f"{record.manager} {record.origin}: {decision.code.value} ({record.mode}) {rendered.before} -> {rendered.after}"
        f" | {record.model or 'no model'} | {'; '.join(decision.reasons)}"
    )
    return visible(line)
