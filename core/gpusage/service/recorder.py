"""Writes into the store: every decision after its answer has left, and the usage of runs.

Invariants:

1. `Recorder.record` is called in the event loop, and never waits: no answer waits for a disk.
2. One writer thread calls plugins, writes the store and logs; decisions that wait meanwhile are written together.
3. A decision that the store refuses waits, and is tried again, until `WAITING_LIMIT` wait or the process ends: a store
   that is away for a while loses nothing. A decision that it refuses while it accepts others is lost.
4. A decision is written, or counted as lost. Only the death of the process loses those of its last moment uncounted;
   their jobs carry the decision in their annotations.
5. Two sources report one run, the sampler on its node and the manager that saw it fail. Whichever comes first, and
   however often, the store has one row of a run. Of a run on whole GPUs of several nodes it has one of each node.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from gpusage.boundary.printable_text import visible
from gpusage.experience.finished_jobs import is_of_another_node, is_same_run
from gpusage.plugins.hooks import Hooks, describe_error, sentence
from gpusage.store.decisions import RETRY_S, DecisionStore
from gpusage.store.rows import UsageQuery
from gpusage_hooks.types import DecisionRecord, Usage

WAITING_LIMIT = 20_000
BEHIND_LIMIT = 1000
"""With so many decisions waiting, answers are delayed: a flood loses fewer records."""
BATCH_DELAY_S, BATCH_LIMIT = 0.05, 16
"""Decisions go to the writer in batches: each costs two thread switches and a transaction, while the event loop waits
for the interpreter. Making a record takes the event loop 50 us, so a batch is small."""
TRANSACTION_LIMIT = 500
"""A row is a few kilobytes until it is written."""
BATCH_FAILURES = 3
"""Attempts to write all that waits together, before each is written in a transaction of its own."""

# Reading a run's row and writing it merged are one step: the monitor's thread and the collector's both report runs.
_merge_lock = threading.Lock()
_log = logging.getLogger(__name__)


class RecordCounts(msgspec.Struct):
    """Decisions since the start: written, lost, and on their way to the store."""

    written: int = 0
    waiting: int = 0
    lost: int = 0
    error: str | None = None


class Recorder:
    """Writes decisions into the store.

    Args:
        store: Used in the writer thread alone.
        loop: Where `record` is called.
        hooks: Pass each decision to plugins; ``None`` for none.
    """

    def __init__(self, store: DecisionStore, loop: asyncio.AbstractEventLoop, hooks: Hooks | None = None) -> None:
        self.counts = RecordCounts()
        self._store = store
        self._loop = loop
        self._hooks = hooks
        self._is_refused = False
        self._batch: list[Callable[[], DecisionRecord]] = []
        self._batch_timer: asyncio.TimerHandle  # set by the first decision of each batch
        self._queue: queue.SimpleQueue[list[DecisionRecord] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    @property
    def is_behind(self) -> bool:
        """Return whether decisions come faster than a store that is there writes them."""
        return self.counts.waiting >= BEHIND_LIMIT and not self._is_refused

    def start(self) -> None:
        """Start the writer thread."""
        self._thread.start()

    def record(self, make_record: Callable[[], DecisionRecord]) -> None:
        """Write the result of *make_record*, which is called a little later, when the answer has left."""
        self.counts.waiting += 1
        if not self._batch:
            self._batch_timer = self._loop.call_later(BATCH_DELAY_S, self._hand_over)
        self._batch.append(make_record)
        if len(self._batch) == BATCH_LIMIT:
            self._batch_timer.cancel()
            self._loop.call_soon(self._hand_over)

    async def close(self, limit_s: float = 2.0) -> None:
        """Write waiting decisions, and end; the ones that take longer than *limit_s* are lost."""
        self._hand_over()
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join, limit_s)

    def _hand_over(self) -> None:
        batch, self._batch = self._batch, []
        records: list[DecisionRecord] = []
        for make_record in batch:
            try:
                records.append(make_record())
            except Exception as error:  # noqa: PERF203 - one job's fields must not cost the records of others
                self.counts.waiting -= 1
                self.counts.lost += 1
                _log.error("a decision could not be recorded: %s", describe_error(error))

        # Beyond the limit memory counts for more than records, whose jobs carry the decision in their annotations.
        if self.counts.waiting > WAITING_LIMIT:
            self.counts.waiting -= len(records)
            self.counts.lost += len(records)
            self.counts.error = f"more than {WAITING_LIMIT} decisions wait to be written"
            return
        self._queue.put(records)

    def _count(self, written: int, lost: int, error: str | None) -> None:
        self.counts.waiting -= written + lost
        self.counts.written += written
        self.counts.lost += lost
        self.counts.error = error
        self._is_refused = error is not None

    def _run(self) -> None:
        """Write until `close`."""
        self._store.prepare()
        waiting: list[DecisionRecord] = []
        failures, error, is_open = 0, None, True
        while is_open:
            records, is_open = self._next_records(RETRY_S if waiting else None)
            if self._hooks is not None:
                for record in records:
                    try:
                        self._hooks.decision_made(record)
                    except Exception as fault:  # noqa: PERF203 - a plugin may fail in any way, for one record or all
                        _log.warning("a plugin failed to hear of a decision: %s", sentence(fault))
            if records and _log.isEnabledFor(logging.INFO):
                _log.info("%s", "\n".join(map(log_line, records)))

            before = len(waiting) + len(records)
            refused, error = self._write([*waiting, *records])
            # After a few failures one record may be at fault: each is tried in a transaction of its own.
            waiting, failed = self._write_one_by_one(refused) if failures >= BATCH_FAILURES else (refused, [])
            failures = failures + 1 if waiting else 0
            error = error if waiting or failed else None
            if not is_open:
                waiting, failed = [], waiting + failed
            written = before - len(waiting) - len(failed)
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._count, written, len(failed), error)
        self._store.close()

    def _next_records(self, limit_s: float | None = None) -> tuple[list[DecisionRecord], bool]:
        """Return new decisions, none after *limit_s* or at the end, and whether more may come."""
        records: list[DecisionRecord] = []
        try:
            batch = self._queue.get(timeout=limit_s)
            # All that has come meanwhile is written together.
            while batch is not None:
                records += batch
                if len(records) >= TRANSACTION_LIMIT:
                    return records, True
                batch = self._queue.get_nowait()
        except queue.Empty:
            return records, True

        return records, False

    def _write_one_by_one(self, records: list[DecisionRecord]) -> tuple[list[DecisionRecord], list[DecisionRecord]]:
        """Write *records* one by one; return the ones to try again, and the ones that alone are refused.

        Two refusals in a row are the store's fault, not the records'. They go to the end, so as to block no others.
        """
        refused: list[DecisionRecord] = []
        consecutive_refusals = 0
        for count, record in enumerate(records, start=1):
            rejected, _ = self._write([record])
            refused += rejected
            consecutive_refusals = consecutive_refusals + 1 if rejected else 0
            if consecutive_refusals == BATCH_FAILURES - 1:
                return [*records[count:], *refused], []

        if len(refused) == len(records):
            return refused, []
        # Once more: the store may have come back just now.
        return [], [record for record in refused if self._write([record])[0]]

    def _write(self, records: list[DecisionRecord]) -> tuple[list[DecisionRecord], str | None]:
        """Write *records*, some in a transaction; return the unwritten ones, and why."""
        for begin in range(0, len(records), TRANSACTION_LIMIT):
            try:
                self._store.record_all(records[begin : begin + TRANSACTION_LIMIT])
            except Exception as error:  # noqa: PERF203 - any failure of the store leaves them to be tried again
                if str(error) != self.counts.error:
                    _log.warning("decisions wait to be written: %s", error)
                return records[begin:], str(error)

        return [], None


def log_line(record: DecisionRecord) -> str:
    """Return *record* on one line."""
    rendered, decision = record.rendered, record.decision
    line = (
        f"{record.manager} {record.origin}: {decision.code.value} ({record.mode}) {rendered.before} -> {rendered.after}"
        f" | {record.model or 'no model'} | {'; '.join(decision.reasons)}"
    )
    return visible(line)


def record_usage(usages: Sequence[Usage], store: DecisionStore, hooks: Hooks) -> tuple[Usage, ...]:
    """Write *usages* into *store*, each merged with its row of the same run, and pass them to plugins.

    Returns:
        The usages as written, and as plugins receive them.

    Raises:
        StoreError: None of them could be written.
    """
    with _merge_lock:
        merged = tuple(_merge_with_row(usage, store) for usage in usages)
        store.record_usage(merged)

    for usage in merged:
        hooks.usage_observed(usage)
    return merged


def _merge_with_row(usage: Usage, store: DecisionStore) -> Usage:
    if not usage.number:
        return usage  # such a job had no share, so only its sampler reports it

    rows = [observation.usage for observation in store.usage(UsageQuery(job_id=usage.job_id, number=usage.number))]
    same_run = [row for row in rows if is_same_run(row, usage) and not is_of_another_node(row, usage)]
    if same_run:
        row = min(same_run, key=lambda each: abs(each.started_at_s - usage.started_at_s))
        measured = usage if usage.gpu else row  # only the sampler sees the GPU
        outcome = row.outcome if row.outcome == "out_of_memory" else usage.outcome
        return replace(measured, started_at_s=row.started_at_s, outcome=outcome)

    # No node sampled a run that failed at once: its part of a GPU is the one that was decided for its job.
    record = store.find(usage.number) if usage.outcome in ("out_of_memory", "failed") and not usage.gpu else None
    if record is None or record.mode != "enforce":
        return usage
    request = record.decision.request
    had = replace(usage.granted, memory_limit_bytes=request.memory_cap_bytes)
    if request.mps_thread_percent:
        had = replace(had, share_percent=request.mps_thread_percent)
    elif request.slice_type and request.memory_cap_bytes:
        had = replace(had, division="slice")
    return replace(usage, granted=had)
