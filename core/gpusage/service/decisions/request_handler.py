"""Decision requests: each gets one response, from the cache, the engine or without it, and most of them a record.

Invariants:

1. Runs in the event loop and never waits; what takes time runs in the engine's or the recorder's thread.
2. A response leaves within its client's limit, whatever the engine is doing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

import msgspec

from gpusage.decisions.outcome import Outcome
from gpusage.service.counters import AnswerCounters
from gpusage.service.decisions.engine import DecidedResponse, describe_origin
from gpusage.service.decisions.worker import DecisionWorker, Exchange, respond_overdue, time_left_s
from gpusage.service.lru_cache import WeightedLruCache
from gpusage.service.monitoring.job_monitor import JobMonitor
from gpusage.service.protocol import LATE, MISSED, THINKING
from gpusage.service.records.recorder import Recorder
from gpusage.service.state.snapshots import Snapshot
from gpusage.store.annotation import RecordNumbers
from gpusage_hooks.types import Code, DecisionRecord, DecisionRequest, JobIdentity

ENGINE_SHARE = 0.7
"""Of the limit on the whole exchange: what deciding may take, so that reading, recording and sending fit as well."""
BEHIND_S = 0.002
"""How much later an answer leaves while the records cannot keep up."""

REMEMBERED_SHARES = 4000

_log = logging.getLogger(__name__)
Reply = Callable[[bytes], None]


class LineCounts(msgspec.Struct):
    """Counts of lines since the start, by their outcome."""

    requests: int = 0
    rewrite: int = 0
    keep: int = 0
    decline: int = 0
    remembered: int = 0
    overdue: int = 0
    failed: int = 0
    spent: int = 0
    refused: int = 0
    malformed: int = 0

    def add(self, code: Code) -> None:
        """Count one decision."""
        name = code.value.lower()
        setattr(self, name, getattr(self, name) + 1)


class RequestHandler:
    """Responds to decision requests.

    Args:
        recorder: Keeps what was decided.
        job_monitor: Is woken when a job was rewritten.
        loop: Where `handle` is called.

    Attributes:
        shares: Jobs that were recently given shares, by the numbers of their decisions.
    """

    def __init__(self, recorder: Recorder, job_monitor: JobMonitor, loop: asyncio.AbstractEventLoop) -> None:
        self.counts = LineCounts()
        self.missed = dict.fromkeys(MISSED, 0)
        self.tally = AnswerCounters()
        self.shares: WeightedLruCache[str, JobIdentity] = WeightedLruCache(REMEMBERED_SHARES)
        self._recorder = recorder
        self._job_monitor = job_monitor
        self._loop = loop
        self._numbers = RecordNumbers()
        self._worker = DecisionWorker(loop, self._finish)

    def start(self) -> None:
        """Begin to decide."""
        self._worker.start()

    def stop(self) -> None:
        """Decide no more."""
        self._worker.stop()

    def handle(self, request: DecisionRequest, snapshot: Snapshot, reply: Reply, send: Reply) -> None:
        """Answer *request* by *snapshot*, with one call of *reply*, now or soon.

        If that takes a while, *send* is called first, with bytes that show a client that we are there.
        """
        self.counts.requests += 1
        reply = self.tally.timed(reply)
        left_s = time_left_s(request, snapshot.configuration.answer_limit_s(request.manager))
        response: DecidedResponse | None = None
        if left_s > 0:  # else the client gets no answer, and reports that the next time
            self._count_missed(request)
            response = snapshot.decision_cache.find(request)
        if response is not None:
            self.counts.remembered += 1
            self._settle(response, request, reply)
            # The response has left; the next request is read after this one.
            snapshot.reservations.add(response.reservation)
            snapshot.recent_jobs.remember(response.outcome, request.fields)
            return
        if left_s > 0 and request.first_by_s is not None:
            send(THINKING)
        exchange = Exchange(request=request, snapshot=snapshot, reply=reply)
        exchange.timer = self._loop.call_later(max(left_s, 0) * ENGINE_SHARE, self._overdue, exchange)
        self._worker.submit(exchange)

    def _count_missed(self, request: DecisionRequest) -> None:
        for why, count in request.missed.items():
            self.missed[why] += count
        if request.missed:
            counts = ", ".join(f"{why} {count}" for why, count in request.missed.items())
            _log.warning("%s: jobs before this one got no answer: %s", request.manager, counts)

    def _overdue(self, exchange: Exchange) -> None:
        """Respond without the engine; the record says what the job really got.

        If the job is not parsed yet, its record waits for the engine, and its user gets no message. The client leaves
        the annotation, which then has no number.
        """
        exchange.has_responded = True
        self.counts.overdue += 1
        model_request = exchange.job.model_request if exchange.job else None
        if model_request is None or not model_request.enabled:
            exchange.reply(LATE.line())
            return
        exchange.recorded = True
        self._settle(respond_overdue(exchange), exchange.request, exchange.reply)

    def _finish(self, exchange: Exchange, response: DecidedResponse | None) -> None:
        """Send and record *response*; if the job was answered without the engine, record what it got."""
        if exchange.timer is not None:
            exchange.timer.cancel()
        if response is not None:
            self.counts.spent += response.over_budget
            self.counts.failed += response.failed
            if exchange.has_responded:
                exchange.snapshot.reservations.withdraw(response.reservation)
        if response is not None and not exchange.has_responded:
            exchange.has_responded = exchange.recorded = True
            self._settle(response, exchange.request, exchange.reply)
        elif not exchange.recorded:
            exchange.recorded = True
            is_unchanged = response is not None and (
                response.outcome is None or response.outcome.decision.code is not Code.REWRITE
            )
            self._settle(
                response if response and is_unchanged else respond_overdue(exchange), exchange.request, _discard
            )

    def _settle(self, response: DecidedResponse, request: DecisionRequest, reply: Reply) -> None:
        """Send *response*, then have it recorded; a dry run is no job, and is not recorded."""
        code = response.outcome.decision.code if response.outcome else Code.DECLINE
        self.counts.add(code)
        if response.outcome is None or response.outcome.is_dry_run:
            self.tally.decisions["", code.value, ""] += response.outcome is None
            reply(response.line())
            return
        now_s = time.time()
        number = self._numbers.next_number(now_s)
        line = response.line(number)
        if self._recorder.is_behind:
            self._loop.call_later(BEHIND_S, reply, line)
        else:
            reply(line)
        self._recorder.record(partial(self._make_record, response.outcome, request, number, now_s))
        self.tally.decisions[request.manager, code.value, response.outcome.mode] += 1
        if code is Code.REWRITE:
            self._job_monitor.due.set()

    def _make_record(
        self, outcome: Outcome, request: DecisionRequest, number: str, decided_at_s: float
    ) -> DecisionRecord:
        """Return the record of *outcome*; a job that was given a share is known by its *number* from now on."""
        record = outcome.record(
            origin=describe_origin(request), number=number, decided_at_s=decided_at_s, fields=request.fields
        )
        if outcome.decision.code is Code.REWRITE and record.identity is not None:
            self.shares.put(number, record.identity)
        return record


def _discard(_: bytes) -> None:
    """Send nothing: the answer has left."""
