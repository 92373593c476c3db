"""A question on its way to the judge, and its ruling if there is no time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpusage.service.judge import Ruling, origin, refusal
from gpusage.service.protocol import Ask
from gpusage.service.state import Snapshot
from gpusage.verdict import leave_alone
from gpusage_hooks.types import Job, Submission

CLOCKS_APART_S = 5.0
"""A client's deadline that is further away than this is by another clock."""
OVERDUE = "deciding took longer than the limit allows; the next such job may be in time"


@dataclass(slots=True)
class Exchange:
    """An ask and the way back to its client.

    Attributes:
        job: What the adapter understood, as soon as it did.
        answered: The answer has left; the judge may still be at it.
        recorded: So has the record of what the job got.
    """

    ask: Ask
    snapshot: Snapshot
    reply: Callable[[bytes], None]
    timer: asyncio.TimerHandle | None = None
    job: Job | None = None
    answered: bool = False
    recorded: bool = False

    def understood(self, job: Job) -> None:
        """Take *job* for what is asked about; the judge says so, in its own thread."""
        self.job = job


def time_left_s(ask: Ask, usual_limit_s: float) -> float:
    """Return how long an answer to *ask* is still of use; *usual_limit_s* where its client gives no sound deadline."""
    if ask.until_s is None:
        return usual_limit_s
    left_s = ask.until_s - time.time()
    return left_s if abs(left_s) <= CLOCKS_APART_S else usual_limit_s


def overdue(exchange: Exchange) -> Ruling:
    """Return the ruling on a job that the judge had no time for."""
    ask = exchange.ask
    submission = Submission(manager=ask.manager, fields=ask.fields, origin=origin(ask))
    ruling = refusal(leave_alone(submission, exchange.snapshot.premises, OVERDUE, exchange.job))
    return replace(ruling, answer=replace(ruling.answer, overdue=True))
