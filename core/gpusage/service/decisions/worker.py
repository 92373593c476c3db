"""Requests on their way through the engine's thread, which decides one after another; what a late one gets."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from gpusage.service.decisions.engine import DecidedResponse, DecisionEngine, describe_origin, refuse
from gpusage.service.state.decision_cache import DecisionCache
from gpusage.service.state.snapshots import Snapshot
from gpusage_hooks.types import DecisionRequest, Job

CLOCKS_APART_S = 5.0
"""A client whose deadline is further away than this has another clock."""
OVERDUE = "deciding took longer than the limit allows; what was computed is kept, so the next such job takes less time"
LATE_LIMIT = 256
"""Jobs that were answered before the engine came to them, and are still decided, for records and like jobs."""


@dataclass(slots=True)
class Exchange:
    """A request and the way back to its client.

    Attributes:
        job: What the adapter parsed, as soon as it did.
        has_responded: The response has left; the engine may still be at it.
        recorded: So has the record of what the job got.
    """

    request: DecisionRequest
    snapshot: Snapshot
    reply: Callable[[bytes], None]
    timer: asyncio.TimerHandle | None = None
    job: Job | None = None
    has_responded: bool = False
    recorded: bool = False

    def set_job(self, job: Job) -> None:
        """Set the job that the adapter parsed; the engine calls this, in its own thread."""
        self.job = job


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


def respond_overdue(exchange: Exchange) -> DecidedResponse:
    """Return the response to a request for which the engine had no time."""
    request = replace(exchange.request, origin=describe_origin(exchange.request))
    outcome = exchange.snapshot.site_advisor.keep_unchanged(request, OVERDUE, exchange.job)
    return replace(refuse(outcome), overdue=True)


class DecisionWorker:
    """Decides the requests that it is handed, in a thread, and last those whose clients no longer wait.

    Args:
        loop: Where `submit` is called, and *on_decided* is.
        on_decided: Gets the response to each; ``None`` where too many wait that were answered before.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_decided: Callable[[Exchange, DecidedResponse | None], None]
    ) -> None:
        self._loop = loop
        self._on_decided = on_decided
        self._waiting: queue.SimpleQueue[Exchange | None] = queue.SimpleQueue()
        self._late: deque[Exchange] = deque()

    def start(self) -> None:
        """Begin to decide."""
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    def stop(self) -> None:
        """End after the current exchange."""
        self._waiting.put(None)

    def submit(self, exchange: Exchange) -> None:
        """Queue *exchange* for a decision."""
        self._waiting.put(exchange)

    def _run(self) -> None:
        engine = DecisionEngine()
        while (exchange := self._next()) is not None:
            if not exchange.has_responded or self._waiting.empty():
                self._hand_back(exchange, _decide(engine, exchange))
            elif len(self._late) < LATE_LIMIT:
                self._late.append(exchange)
            else:
                self._hand_back(exchange, None)

    def _next(self) -> Exchange | None:
        with suppress(queue.Empty):
            return self._waiting.get(block=not self._late)
        return self._late.popleft()

    def _hand_back(self, exchange: Exchange, response: DecidedResponse | None) -> None:
        if response is not None:
            exchange.snapshot.reservations.add(response.reservation)  # before the next one is decided
            exchange.snapshot.recent_jobs.remember(response.outcome, exchange.request.fields)
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._on_decided, exchange, response)


def _decide(engine: DecisionEngine, exchange: Exchange) -> DecidedResponse:
    """Return the response of *engine*, or the one in the cache, for a request that waited behind one like it."""
    cache: DecisionCache[DecidedResponse] = exchange.snapshot.decision_cache
    response = cache.find(exchange.request)
    if response is None:
        response = engine.decide(exchange.request, exchange.snapshot, exchange.set_job)
        cache.add(exchange.request, response.fields_read, response)
    return response
