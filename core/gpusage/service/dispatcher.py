"""Answers every line that comes in, on either socket.

Invariants:

1. Each line gets exactly one answer.
2. A client that may not ask gets the same answer as clients that we cannot answer: the job stays as it is.
3. A stranger's lines cost little: a status is made once a second, and a user's mistakes are logged once a minute.
"""

from __future__ import annotations

import logging
import time
from importlib.metadata import version
from typing import Any

from msgspec import to_builtins

from gpusage.service.caches import WeightedLruCache
from gpusage.service.job_monitor import JobMonitor
from gpusage.service.protocol import (
    ALIVE,
    UNCHANGED,
    VERSION,
    FailureNotice,
    Ping,
    ProtocolError,
    Question,
    StatusQuery,
    json_line,
    parse_line,
)
from gpusage.service.recorder import Recorder
from gpusage.service.request_handler import Reply, RequestHandler
from gpusage.service.snapshots import State
from gpusage.service.usage_collector import UsageCollector
from gpusage_hooks.types import DecisionRequest

STATUS_AGE_S = 1.0
LOG_INTERVAL_S = 60.0
"""Between two messages about one user."""
LOGGED_USERS_LIMIT = 1000

_log = logging.getLogger(__name__)


class Dispatcher:
    """Answers lines.

    Args:
        state: Has the newest snapshot.
        request_handler: Handles decision requests.
        recorder: Its counts are part of the status.
        job_monitor: Likewise; it runs at once when a job fails.
        usage_collector: Likewise.
    """

    def __init__(
        self,
        state: State,
        request_handler: RequestHandler,
        recorder: Recorder,
        job_monitor: JobMonitor,
        usage_collector: UsageCollector,
    ) -> None:
        self._state = state
        self._request_handler = request_handler
        self._recorder = recorder
        self._job_monitor = job_monitor
        self._usage_collector = usage_collector
        self._version = version("gpusage")
        self._started_s = time.monotonic()
        self._status = 0.0, b""
        self._logged_minutes: WeightedLruCache[int, int] = WeightedLruCache(LOGGED_USERS_LIMIT)

    def trusts(self, uid: int) -> bool:
        """Return whether *uid* may ask for decisions."""
        return uid in self._state.snapshot.trusted_uids

    def respond(self, line: bytes, uid: int, reply: Reply, send: Reply) -> None:
        """Answer *line*, which the user *uid* sent, who may ask, by one call of *reply*, now or soon.

        Bytes before the answer are sent by *send*.

        Raises:
            ProtocolError: It is no question; *reply* was not called.
        """
        question = self._parse(line, uid)
        if isinstance(question, DecisionRequest):
            self._request_handler.handle(question, self._state.snapshot, reply, send)
        elif isinstance(question, FailureNotice):
            # Only a job of this user: an annotation may have been copied. One that was decided before this daemon was
            # started is found by the job monitor.
            identity = self._request_handler.shares.get(question.number)
            if identity is not None and identity.user == question.user:
                self._state.add_failure(identity)
            self._job_monitor.due.set()
            reply(ALIVE)
        else:
            reply(self._query(question, uid))

    def respond_status(self, line: bytes, uid: int) -> bytes:
        """Return the answer to *line* on the status socket, where nobody gets a decision."""
        try:
            question = self._parse(line, uid)
        except ProtocolError:
            return UNCHANGED.line()
        if isinstance(question, DecisionRequest | FailureNotice):
            # Everyone may connect here, and decisions are for workload managers alone.
            self._request_handler.counts.refused += 1
            self._warn(uid, f"uid {uid} asks where only the status is given")
            return UNCHANGED.line()

        return self._query(question, uid)

    def refuse(self, uid: int) -> None:
        """Count and log that *uid*, who may not ask, connected."""
        self._request_handler.counts.refused += 1
        self._warn(uid, f"uid {uid} may not ask: it is not among daemon.allowed_users")

    def status(self) -> dict[str, Any]:
        """Return the daemon's status."""
        return {
            "v": VERSION,
            "code": "OK",
            "version": self._version,
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            **self._state.status(),
            "lines": to_builtins(self._request_handler.counts),
            "missed": dict(self._request_handler.missed),
            "records": to_builtins(self._recorder.counts),
            "job_monitor": self._job_monitor.status(),
            "usage": self._usage_collector.status(),
            "plugins": self._state.snapshot.advisor.hooks.troubles(),
        }

    def _parse(self, line: bytes, uid: int) -> Question:
        try:
            return parse_line(line)
        except ProtocolError as error:
            self._request_handler.counts.malformed += 1
            self._warn(uid, f"uid {uid}: {error}")
            raise

    def _query(self, question: Ping | StatusQuery, uid: int) -> bytes:
        if isinstance(question, Ping):
            return ALIVE

        # A stranger may get a status that is a second old; a trusted user gets today's.
        made_s, line = self._status
        now_s = time.monotonic()
        if not line or now_s - made_s >= STATUS_AGE_S or self.trusts(uid):
            line = json_line(self.status())
            self._status = now_s, line
        return line

    def _warn(self, uid: int, message: str) -> None:
        """Log *message*, unless one about *uid* was logged in this minute."""
        # A user who asks a thousand times a second must not fill the log.
        minute = int(time.monotonic() / LOG_INTERVAL_S)
        if self._logged_minutes.get(uid) != minute:
            self._logged_minutes.put(uid, minute)
            _log.warning("%s", message)
