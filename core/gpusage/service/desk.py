"""The desk: every line that comes in gets its answer here.

Invariants:

1. Runs in the event loop and never waits; what takes time runs in the judge's or the recorder's thread.
2. Each line gets exactly one answer.
3. Who may not ask gets the same answer as everyone whom we cannot answer: the job stays as it is.
4. A stranger's questions cost little: the status that he sees is made once a second, he is complained of once a minute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from gpusage.service.aftercare import Aftercare
from gpusage.service.exchange import Exchange, overdue, time_left_s
from gpusage.service.judge import Ruling, origin
from gpusage.service.judge_thread import JudgeThread
from gpusage.service.memo import Memo
from gpusage.service.protocol import (
    ALIVE,
    KEPT,
    LATE,
    MISSED,
    VERSION,
    Ask,
    Ping,
    ProtocolError,
    Question,
    StatusQuery,
    json_line,
    parse_line,
)
from gpusage.service.recorder import Recorder
from gpusage.service.state import Snapshot, State
from gpusage.store.numbers import Numbers
from gpusage_hooks.types import Code

JUDGE_SHARE = 0.7
"""Of the limit on the whole exchange: what judging may take, so that reading, recording and sending fit as well."""
STATUS_AGE_S = 1.0
COMPLAINT_S = 60.0
REMEMBERED_COMPLAINTS = 1000

_log = logging.getLogger(__name__)
Reply = Callable[[bytes], None]


@dataclass(slots=True)
class Counts:
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


class Desk:
    """Answers lines.

    Args:
        state: What verdicts rest on.
        recorder: Keeps them.
        aftercare: Hears of it when a job was rewritten.
        loop: Where `answer` is called.
    """

    def __init__(self, state: State, recorder: Recorder, aftercare: Aftercare, loop: asyncio.AbstractEventLoop) -> None:
        self.counts = Counts()
        self.missed = dict.fromkeys(MISSED, 0)
        self._state = state
        self._recorder = recorder
        self._aftercare = aftercare
        self._loop = loop
        self._version = version("gpusage")
        self._started_s = time.monotonic()
        self._numbers = Numbers()
        self._judge = JudgeThread(loop, self._judged)
        self._status = 0.0, b""
        self._complaints: Memo[int, int] = Memo(REMEMBERED_COMPLAINTS)

    def start(self) -> None:
        """Begin to judge."""
        self._judge.start()

    def stop(self) -> None:
        """Judge no more."""
        self._judge.stop()

    def trusts(self, uid: int) -> bool:
        """Tell whether *uid* may ask for verdicts."""
        return uid in self._state.snapshot.trusted_uids

    def answer(self, line: bytes, uid: int, reply: Reply) -> None:
        """Answer *line*, which the user *uid* sent, who may ask, by one call of *reply*, now or soon.

        Raises:
            ProtocolError: It is no question; *reply* was not called.
        """
        question = self._parsed(line, uid)
        if isinstance(question, Ask):
            self._ask(question, self._state.snapshot, reply)
        else:
            reply(self._told(question, uid))

    def tell(self, line: bytes, uid: int) -> bytes:
        """Return what may be told to anyone who sent *line*; nobody gets a verdict here."""
        try:
            question = self._parsed(line, uid)
        except ProtocolError:
            return KEPT.line()
        if isinstance(question, Ask):
            self.counts.refused += 1
            self._complain(uid, f"uid {uid} asks where only the status is told")
            return KEPT.line()
        return self._told(question, uid)

    def refuse(self, uid: int) -> None:
        """Take note that *uid*, who may not ask, came to ask."""
        self.counts.refused += 1
        self._complain(uid, f"uid {uid} may not ask: it is not among daemon.allowed_users")

    def status(self) -> dict[str, Any]:
        """Return how the daemon fares."""
        return {
            "v": VERSION,
            "code": "OK",
            "version": self._version,
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            **self._state.status(),
            "asks": asdict(self.counts),
            "missed": dict(self.missed),
            "records": asdict(self._recorder.counts),
            "aftercare": self._aftercare.status(),
            "plugins": self._state.snapshot.advisor.hooks.troubles(),
        }

    def _parsed(self, line: bytes, uid: int) -> Question:
        try:
            return parse_line(line)
        except ProtocolError as error:
            self.counts.malformed += 1
            self._complain(uid, f"uid {uid}: {error}")
            raise

    def _told(self, question: Ping | StatusQuery, uid: int) -> bytes:
        if isinstance(question, Ping):
            return ALIVE
        made_s, line = self._status
        now_s = time.monotonic()
        if not line or now_s - made_s >= STATUS_AGE_S or self.trusts(uid):
            line = json_line(self.status())
            self._status = now_s, line
        return line

    def _complain(self, uid: int, complaint: str) -> None:
        """Log *complaint*, unless *uid* gave cause for one within the last minute."""
        minute = int(time.monotonic() / COMPLAINT_S)
        if self._complaints.get(uid) != minute:
            self._complaints.put(uid, minute)
            _log.warning("%s", complaint)

    def _ask(self, ask: Ask, snapshot: Snapshot, reply: Reply) -> None:
        self.counts.asked += 1
        left_s = time_left_s(ask, snapshot.configuration.answer_limit_s(ask.manager))
        ruling: Ruling | None = None
        if left_s > 0:  # else the client hears no answer, and tells the next time
            self._count_missed(ask)
            ruling = snapshot.precedents.find(ask)
        if ruling is not None:
            self.counts.remembered += 1
            self._settle(ruling, ask, reply)
            return
        exchange = Exchange(ask=ask, snapshot=snapshot, reply=reply)
        exchange.timer = self._loop.call_later(max(left_s, 0) * JUDGE_SHARE, self._overdue, exchange)
        self._judge.hand_over(exchange)

    def _count_missed(self, ask: Ask) -> None:
        for why, count in ask.missed.items():
            self.missed[why] += count
        if ask.missed:
            told = ", ".join(f"{why} {count}" for why, count in ask.missed.items())
            _log.warning("%s: jobs before this one got no answer: %s", ask.manager, told)

    def _overdue(self, exchange: Exchange) -> None:
        """Answer in the judge's place; the record tells what the job really got.

        Where the job is not understood yet, its record waits for the judge, its user cannot be told, and its mark,
        which the client leaves, has no number.
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
        if ruling is not None and not exchange.answered:
            exchange.answered = exchange.recorded = True
            self._settle(ruling, exchange.ask, exchange.reply)
        elif not exchange.recorded:
            exchange.recorded = True
            given = ruling is not None and (ruling.verdict is None or ruling.verdict.decision.code is not Code.REWRITE)
            self._settle(ruling if ruling and given else overdue(exchange), exchange.ask, _unheard)

    def _settle(self, ruling: Ruling, ask: Ask, reply: Reply) -> None:
        """Have *ruling* recorded, then send it."""
        if ruling.verdict is None:
            self.counts.decline += 1
            reply(ruling.answer.line())
            return
        code = ruling.verdict.decision.code
        self.counts.add(code)
        if code is Code.REWRITE:
            self._aftercare.due.set()
        now_s = time.time()
        number = self._numbers.take(now_s)
        line = ruling.answer.line(number)
        record = ruling.verdict.record(origin=origin(ask), number=number, decided_at_s=now_s)
        self._recorder.keep(record, lambda: reply(line))


def _unheard(_: bytes) -> None:
    """Send nothing: the answer has left."""
