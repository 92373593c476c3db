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
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

from gpusage.service.aftercare import Aftercare
from gpusage.service.answer import Judge, Verdict, origin
from gpusage.service.case import Case, overdue, time_left_s
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
LATE_LIMIT = 256
"""Jobs that were answered in the judge's place and are still to be judged, for their records and for the next alike."""

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
        self._cases: queue.SimpleQueue[Case | None] = queue.SimpleQueue()
        self._status = 0.0, b""
        self._complaints: Memo[int, int] = Memo(REMEMBERED_COMPLAINTS)

    def start(self) -> None:
        """Begin to judge."""
        threading.Thread(target=self._judge, name="judge", daemon=True).start()

    def stop(self) -> None:
        """End the judge's thread."""
        self._cases.put(None)

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
            return KEPT
        if isinstance(question, Ask):
            self.counts.refused += 1
            self._complain(uid, f"uid {uid} asks where only the status is told")
            return KEPT
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
        case = Case(ask=ask, snapshot=snapshot, reply=reply)
        left_s = time_left_s(case)
        if left_s > 0:  # else the client hears no answer, and tells the next time
            self._count_missed(ask)
        verdict: Verdict | None = snapshot.precedents.find(ask) if left_s > 0 else None
        if verdict is not None:
            self.counts.remembered += 1
            self._settle(verdict, ask, reply)
            return
        case.timer = self._loop.call_later(max(left_s, 0) * JUDGE_SHARE, self._overdue, case)
        self._cases.put(case)

    def _count_missed(self, ask: Ask) -> None:
        for why, count in ask.missed.items():
            self.missed[why] += count
        if ask.missed:
            told = ", ".join(f"{why} {count}" for why, count in ask.missed.items())
            _log.warning("%s: jobs before this one got no answer: %s", ask.manager, told)

    def _overdue(self, case: Case) -> None:
        """Answer in the judge's place; the record tells what the job really got.

        Where the job is not understood yet, its record waits for the judge, its user cannot be told, and its mark,
        which the client leaves, has no number.
        """
        case.answered = True
        self.counts.overdue += 1
        wish = case.job.model_request if case.job else None
        if wish is None or not wish.enabled:
            case.reply(LATE)
            return
        case.recorded = True
        self._settle(overdue(case), case.ask, case.reply)

    def _judged(self, case: Case, verdict: Verdict) -> None:
        if case.timer is not None:
            case.timer.cancel()
        self.counts.spent += verdict.spent
        if verdict.failed:
            self.counts.failed += 1
        else:
            case.snapshot.precedents.add(case.ask, verdict.seen, verdict)
        if not case.answered:
            case.answered = case.recorded = True
            self._settle(verdict, case.ask, case.reply)
        elif not case.recorded:
            self._record_late(case, verdict)

    def _record_late(self, case: Case, verdict: Verdict | None) -> None:
        """Have recorded what a job got that was answered in the judge's place: no more than *verdict* gives it."""
        case.recorded = True
        unchanged = verdict is not None and not (verdict.record and verdict.record.decision.code is Code.REWRITE)
        self._settle(verdict if verdict and unchanged else overdue(case), case.ask, _unheard)

    def _settle(self, verdict: Verdict, ask: Ask, reply: Reply) -> None:
        """Have *verdict* recorded, then send it."""
        if verdict.record is None:
            self.counts.decline += 1
            reply(verdict.line)
            return
        code = verdict.record.decision.code.value.lower()
        setattr(self.counts, code, getattr(self.counts, code) + 1)
        if verdict.record.decision.code is Code.REWRITE:
            self._aftercare.rewrote = True
        now_s = time.time()
        number = self._numbers.take(now_s)
        line = verdict.line if verdict.marked is None else number.encode().join(verdict.marked)
        record = replace(verdict.record, decided_at_s=now_s, origin=origin(ask), number=number)
        self._recorder.keep(record, lambda: reply(line))

    def _judge(self) -> None:
        """Judge case after case, in the judge's thread; those that nobody waits for any more come last."""
        judge = Judge()
        late: deque[Case] = deque()
        while (case := self._next(late)) is not None:
            if not case.answered or self._cases.empty():
                verdict = judge.verdict(case.ask, case.snapshot, case.understood)
                self._call(self._judged, case, verdict)
            elif len(late) < LATE_LIMIT:
                late.append(case)
            else:
                self._call(self._record_late, case, None)

    def _next(self, late: deque[Case]) -> Case | None:
        with suppress(queue.Empty):
            return self._cases.get(block=not late)
        return late.popleft()

    def _call(self, act: Callable[[Case, Any], None], case: Case, verdict: Verdict | None) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(act, case, verdict)


def _unheard(_: bytes) -> None:
    """Send nothing: the answer has left."""
