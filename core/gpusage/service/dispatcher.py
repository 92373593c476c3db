"""The dispatcher: it answers every line that comes in.

Invariants:

1. Each line gets exactly one answer.
2. A client that may not ask gets the same answer as clients that we cannot answer: the job stays as it is.
3. A stranger's questions cost little: its status is made once a second, and complaints are logged once a minute.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from gpusage.service.aftercare import Aftercare
from gpusage.service.asks import Asks, Reply
from gpusage.service.memo import Memo
from gpusage.service.protocol import (
    ALIVE,
    KEPT,
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
from gpusage.service.state import State
from gpusage.service.usage_watch import UsageWatch

STATUS_AGE_S = 1.0
COMPLAINT_S = 60.0
REMEMBERED_COMPLAINTS = 1000

_log = logging.getLogger(__name__)


class Dispatcher:
    """Answers lines.

    Args:
        state: What verdicts rest on.
        asks: Answers those lines that ask for one.
        recorder: Tells how it fares.
        aftercare: Likewise.
        usage_watch: Likewise.
    """

    def __init__(
        self, state: State, asks: Asks, recorder: Recorder, aftercare: Aftercare, usage_watch: UsageWatch
    ) -> None:
        self._state = state
        self._asks = asks
        self._recorder = recorder
        self._aftercare = aftercare
        self._usage_watch = usage_watch
        self._version = version("gpusage")
        self._started_s = time.monotonic()
        self._status = 0.0, b""
        self._complaints: Memo[int, int] = Memo(REMEMBERED_COMPLAINTS)

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
            self._asks.take(question, self._state.snapshot, reply)
        else:
            reply(self._told(question, uid))

    def tell(self, line: bytes, uid: int) -> bytes:
        """Return what may be told to anyone who sent *line*; nobody gets a verdict here."""
        try:
            question = self._parsed(line, uid)
        except ProtocolError:
            return KEPT.line()
        if isinstance(question, Ask):
            self._asks.counts.refused += 1
            self._complain(uid, f"uid {uid} asks where only the status is told")
            return KEPT.line()
        return self._told(question, uid)

    def refuse(self, uid: int) -> None:
        """Take note that *uid*, who may not ask, came to ask."""
        self._asks.counts.refused += 1
        self._complain(uid, f"uid {uid} may not ask: it is not among daemon.allowed_users")

    def status(self) -> dict[str, Any]:
        """Return how the daemon fares."""
        return {
            "v": VERSION,
            "code": "OK",
            "version": self._version,
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            **self._state.status(),
            "asks": asdict(self._asks.counts),
            "missed": dict(self._asks.missed),
            "records": asdict(self._recorder.counts),
            "aftercare": self._aftercare.status(),
            "usage": self._usage_watch.status(),
            "plugins": self._state.snapshot.advisor.hooks.troubles(),
        }

    def _parsed(self, line: bytes, uid: int) -> Question:
        try:
            return parse_line(line)
        except ProtocolError as error:
            self._asks.counts.malformed += 1
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
