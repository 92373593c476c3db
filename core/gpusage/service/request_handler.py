"""Decision requests: each gets one response, from the cache, the engine or without it, and most of them a record.

Invariants:

1. Runs in the event loop and never waits; slow work runs in the engine's or the recorder's thread.
2. A response leaves within its client's limit, whatever the engine is doing.
3. Counting costs a response about two microseconds, needs no library, and never waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from gpusage.service.decision_cache import WeightedLruCache
from gpusage.service.engine import DecidedResponse, DecisionWorker, Exchange, describe_origin, respond_overdue
from gpusage.service.job_monitor import JobMonitor
from gpusage.service.protocol import LATE, MISSED, THINKING
from gpusage.service.recorder import Recorder
from gpusage.service.snapshots import Snapshot
from gpusage.store.annotation import RecordNumbers
from gpusage_hooks.types import Code, DecisionRecord, DecisionRequest, JobIdentity

ENGINE_SHARE = 0.7
"""Of the limit on the whole exchange: the time of deciding, so that reading, recording and sending fit as well."""
CLOCKS_APART_S = 5.0
"""A client whose deadline is further away than this has another clock."""
BEHIND_S = 0.002
"""How much later an answer leaves while the records cannot keep up."""
REMEMBERED_SHARES = 4000
BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.07, 0.1, 0.25, 1.0)
"""Upper ends of the buckets: an answer from memory takes 1 ms, one of a new model 10, and 40 is the usual limit."""

_log = logging.getLogger(__name__)
Reply = Callable[[bytes], None]
Labels = tuple[str, ...]


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


@dataclass(slots=True)
class AnswerCounters:
    """Counts answers for the metrics; written in the event loop, read by any thread.

    Attributes:
        decisions: By manager, code and mode.
        duration_counts: Answers by the time that they took: one count per bucket of `BOUNDS_S`, the last one for all
            that took longer.
        duration_sum_s: Of all answers.
    """

    decisions: Counter[Labels] = field(default_factory=Counter)
    duration_counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    duration_sum_s: float = 0.0

    def timed(self, reply: Reply) -> Reply:
        """Return *reply* so that the time from now until its call is counted."""
        begun_s = time.perf_counter()

        def response(line: bytes) -> None:
            reply(line)
            duration_s = time.perf_counter() - begun_s
            self.duration_counts[bisect_left(BOUNDS_S, duration_s)] += 1
            self.duration_sum_s += duration_s

        return response


class RequestHandler:
    """Responds to decision requests.

    Args:
        recorder: Keeps the decisions.
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
        if left_s > 0:
            # A client that gets no answer this time reports the missed jobs again.
            for why, count in request.missed.items():
                self.missed[why] += count
            if request.missed:
                counts = ", ".join(f"{why} {count}" for why, count in request.missed.items())
                _log.warning("%s: jobs before this one were left unchanged: %s", request.manager, counts)

            response: DecidedResponse | None = snapshot.decision_cache.find(request)
            if response is not None:
                self.counts.remembered += 1
                self._respond(response, request, reply)

                # The response has left; the next request is read after this one.
                snapshot.reservations.add(response.reservation)
                snapshot.recent_jobs.remember(response.outcome, request.fields)
                return
            if request.first_by_s is not None:
                send(THINKING)

        # Whatever the engine does, the client gets an answer in time.
        exchange = Exchange(request=request, snapshot=snapshot, reply=reply)
        exchange.timer = self._loop.call_later(max(left_s, 0) * ENGINE_SHARE, self._overdue, exchange)
        self._worker.submit(exchange)

    def _overdue(self, exchange: Exchange) -> None:
        """Respond without the engine; the record has the real answer.

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
        self._respond(respond_overdue(exchange), exchange.request, exchange.reply)

    def _finish(self, exchange: Exchange, response: DecidedResponse | None) -> None:
        """Send and record *response*; if the job was answered without the engine, record that answer."""
        if exchange.timer is not None:
            exchange.timer.cancel()
        if response is not None:
            self.counts.spent += response.over_budget
            self.counts.failed += response.failed
            if not exchange.has_responded:
                exchange.has_responded = exchange.recorded = True
                self._respond(response, exchange.request, exchange.reply)
                return
            exchange.snapshot.reservations.withdraw(response.reservation)

        # The answer has left. A decision that changes nothing is what the job got; any other came too late.
        if not exchange.recorded:
            exchange.recorded = True
            is_unchanged = response is not None and (
                response.outcome is None or response.outcome.decision.code is not Code.REWRITE
            )
            response = response if response and is_unchanged else respond_overdue(exchange)
            self._respond(response, exchange.request, lambda _: None)

    def _respond(self, response: DecidedResponse, request: DecisionRequest, reply: Reply) -> None:
        """Send *response*, then have it recorded; a dry run is no job, and is not recorded."""
        outcome = response.outcome
        code = outcome.decision.code if outcome else Code.DECLINE
        self.counts.rewrite += code is Code.REWRITE
        self.counts.keep += code is Code.KEEP
        self.counts.decline += code is Code.DECLINE
        if outcome is None or outcome.is_dry_run:
            self.tally.decisions["", code.value, ""] += outcome is None
            reply(response.line())
            return

        # The number is in the answer's annotation before there is a record of it.
        now_s = time.time()
        number = self._numbers.next_number(now_s)
        line = response.line(number)
        if self._recorder.is_behind:
            self._loop.call_later(BEHIND_S, reply, line)
        else:
            reply(line)

        def make_record() -> DecisionRecord:
            record = outcome.record(
                origin=describe_origin(request), number=number, decided_at_s=now_s, fields=request.fields
            )
            # From now on a notice of the job's failure finds it by its number.
            if code is Code.REWRITE and record.identity is not None:
                self.shares.put(number, record.identity)
            return record

        self._recorder.record(make_record)
        self.tally.decisions[request.manager, code.value, outcome.mode] += 1
        if code is Code.REWRITE:
            self._job_monitor.due.set()


def time_left_s(request: DecisionRequest, usual_limit_s: float) -> float:
    """Return how long a response to *request* is of use; *usual_limit_s* where its client gives no sound deadline.

    Nothing has been answered yet: a client that has waited in vain for a first byte has gone.
    """
    if request.until_s is None:
        return usual_limit_s

    now_s = time.time()
    left_s = request.until_s - now_s
    if abs(left_s) > CLOCKS_APART_S:
        return usual_limit_s
    has_left = request.first_by_s is not None and request.first_by_s <= now_s
    return 0.0 if has_left else left_s
