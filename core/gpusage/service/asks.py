"""Asks: each gets one answer, from an earlier ruling, from the judge or in its place; unless a dry run, also a record.

Invariants:

1. Runs in the event loop and never waits; what takes time runs in the judge's or the recorder's thread.
2. An answer leaves within its client's limit, whatever the judge is at.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpusage.service.aftercare import Aftercare
from gpusage.service.exchange import Exchange, overdue, time_left_s
from gpusage.service.judge import Ruling, origin
from gpusage.service.judge_thread import JudgeThread
from gpusage.service.protocol import LATE, MISSED, Ask
from gpusage.service.recorder import Recorder
from gpusage.service.state import Snapshot
from gpusage.service.tallies import AnswerTally
from gpusage.store.numbers import Numbers
from gpusage_hooks.types import Code

JUDGE_SHARE = 0.7
"""Of the limit on the whole exchange: what judging may take, so that reading, recording and sending fit as well."""

_log = logging.getLogger(__name__)
Reply = Callable[[bytes], None]


@dataclass(slots=True)
class LineCounts:
    """Lines since the start, by what became of them."""

    asked: int = 0
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


class Asks:
    """Answers asks.

    Args:
        recorder: Keeps what was decided.
        aftercare: Hears of it when a job was rewritten.
        loop: Where `take` is called.
    """

    def __init__(self, recorder: Recorder, aftercare: Aftercare, loop: asyncio.AbstractEventLoop) -> None:
        self.counts = LineCounts()
        self.missed = dict.fromkeys(MISSED, 0)
        self.tally = AnswerTally()
        self._recorder = recorder
        self._aftercare = aftercare
        self._loop = loop
        self._numbers = Numbers()
        self._judge = JudgeThread(loop, self._judged)

    def start(self) -> None:
        """Begin to judge."""
        self._judge.start()

    def stop(self) -> None:
        """Judge no more."""
        self._judge.stop()

    def take(self, ask: Ask, snapshot: Snapshot, reply: Reply) -> None:
        """Answer *ask* on the ground of *snapshot*, by one call of *reply*, now or soon."""
        self.counts.asked += 1
        reply = self.tally.timed(reply)
        left_s = time_left_s(ask, snapshot.configuration.answer_limit_s(ask.manager))
        ruling: Ruling | None = None
        if left_s > 0:  # else the client hears no answer, and tells the next time
            self._count_missed(ask)
            ruling = snapshot.precedents.find(ask)
        if ruling is not None:
            self.counts.remembered += 1
            snapshot.ledger.add(ruling.claim)
            snapshot.rivals.remember(ruling.verdict, ask.fields)
            self._settle(ruling, ask, reply)
            return
        exchange = Exchange(ask=ask, snapshot=snapshot, reply=reply)
        exchange.timer = self._loop.call_later(max(left_s, 0) * JUDGE_SHARE, self._overdue, exchange)
        self._judge.hand_over(exchange)

    def _count_missed(self, ask: Ask) -> None:
        for why, count in ask.missed.items():
            self.missed[why] += count
        if ask.missed:
            counts = ", ".join(f"{why} {count}" for why, count in ask.missed.items())
            _log.warning("%s: jobs before this one got no answer: %s", ask.manager, counts)

    def _overdue(self, exchange: Exchange) -> None:
        """Answer in the judge's place; the record tells what the job really got.

        If the job is not understood yet, its record waits for the judge, and we cannot tell its user. The client leaves
        the mark, and this mark has no number.
        """
        exchange.answered = True
        self.counts.overdue += 1
        wish = exchange.job.model_request if exchange.job else None
        if wish is None or not wish.enabled:
            exchange.reply(LATE.line())
            return
        exchange.recorded = True
        self._settle(overdue(exchange), exchange.ask, exchange.reply)

    def _judged(self, exchange: Exchange, ruling: Ruling | None) -> None:
        """Send and record *ruling*, or what the job got that was answered in the judge's place."""
        if exchange.timer is not None:
            exchange.timer.cancel()
        if ruling is not None:
            self.counts.spent += ruling.spent
            self.counts.failed += ruling.failed
            if exchange.answered:
                exchange.snapshot.ledger.withdraw(ruling.claim)
        if ruling is not None and not exchange.answered:
            exchange.answered = exchange.recorded = True
            self._settle(ruling, exchange.ask, exchange.reply)
        elif not exchange.recorded:
            exchange.recorded = True
            given = ruling is not None and (ruling.verdict is None or ruling.verdict.decision.code is not Code.REWRITE)
            self._settle(ruling if ruling and given else overdue(exchange), exchange.ask, _unheard)

    def _settle(self, ruling: Ruling, ask: Ask, reply: Reply) -> None:
        """Have *ruling* recorded, then send it; a dry run is no job, and is not recorded."""
        code = ruling.verdict.decision.code if ruling.verdict else Code.DECLINE
        self.counts.add(code)
        if ruling.verdict is None or ruling.verdict.is_dry_run:
            self.tally.decisions["", code.value, ""] += ruling.verdict is None
            reply(ruling.answer.line())
            return
        self.tally.decisions[ask.manager, code.value, ruling.verdict.mode] += 1
        if code is Code.REWRITE:
            self._aftercare.due.set()
        now_s = time.time()
        number = self._numbers.take(now_s)
        line = ruling.answer.line(number)
        record = ruling.verdict.record(origin=origin(ask), number=number, decided_at_s=now_s, fields=ask.fields)
        self._recorder.keep(record, lambda: reply(line))


def _unheard(_: bytes) -> None:
    """Send nothing: the answer has left."""
