"""The judge's thread: it judges exchanges one after another, and last those that nobody waits for any more."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from gpusage.service.exchange import Exchange
from gpusage.service.judge import Judge, Ruling
from gpusage.service.precedents import Precedents

LATE_LIMIT = 256
"""Jobs that were answered in the judge's place and are still to be judged, for their records and for the next alike."""


class JudgeThread:
    """Judges what it is handed.

    Args:
        loop: Where `hand_over` is called, and *judged* is.
        judged: Hears the ruling on each exchange; ``None`` where too many wait that were answered before.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, judged: Callable[[Exchange, Ruling | None], None]) -> None:
        self._loop = loop
        self._judged = judged
        self._waiting: queue.SimpleQueue[Exchange | None] = queue.SimpleQueue()
        self._late: deque[Exchange] = deque()

    def start(self) -> None:
        """Begin to judge."""
        threading.Thread(target=self._run, name="judge", daemon=True).start()

    def stop(self) -> None:
        """End, after the exchange at hand."""
        self._waiting.put(None)

    def hand_over(self, exchange: Exchange) -> None:
        """Have *exchange* judged in its turn."""
        self._waiting.put(exchange)

    def _run(self) -> None:
        judge = Judge()
        while (exchange := self._next()) is not None:
            if not exchange.answered or self._waiting.empty():
                self._tell(exchange, _ruling(judge, exchange))
            elif len(self._late) < LATE_LIMIT:
                self._late.append(exchange)
            else:
                self._tell(exchange, None)

    def _next(self) -> Exchange | None:
        with suppress(queue.Empty):
            return self._waiting.get(block=not self._late)
        return self._late.popleft()

    def _tell(self, exchange: Exchange, ruling: Ruling | None) -> None:
        if ruling is not None:
            exchange.snapshot.ledger.add(ruling.claim)  # before the next one is judged
            exchange.snapshot.rivals.remember(ruling.verdict, exchange.ask.fields)
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._judged, exchange, ruling)


def _ruling(judge: Judge, exchange: Exchange) -> Ruling:
    """Return the ruling of *judge*, or the one that holds already for a question that waited behind its like."""
    precedents: Precedents[Ruling] = exchange.snapshot.precedents
    ruling = precedents.find(exchange.ask)
    if ruling is None:
        ruling = judge.rule(exchange.ask, exchange.snapshot, exchange.understood)
        precedents.add(exchange.ask, ruling.seen, ruling)
    return ruling
