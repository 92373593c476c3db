"""A question on its way to the judge, and what becomes of it where there is no time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpusage.service.answer import Verdict, kept, origin
from gpusage.service.protocol import Ask, late
from gpusage.service.state import Snapshot
from gpusage_hooks.types import Job, Submission

CLOCKS_APART_S = 5.0
"""A client's deadline that is further away than this is by another clock."""


@dataclass(slots=True)
class Case:
    """An ask on its way to the judge.

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

    @property
    def limit_s(self) -> float:
        """How long the whole exchange may take: what the adapter says, else what the configuration does."""
        return self.ask.limit_s or self.snapshot.configuration.answer_limit_s(self.ask.manager)

    def understood(self, job: Job) -> None:
        """Take *job* for what is asked about; the judge says so, in its own thread."""
        self.job = job


def time_left_s(case: Case) -> float:
    """Return how long an answer is still of use; a client that does not say, or by another clock, has its limit."""
    if case.ask.until_s is None:
        return case.limit_s
    left_s = case.ask.until_s - time.time()
    return left_s if abs(left_s) <= CLOCKS_APART_S else case.limit_s


def overdue(case: Case) -> Verdict:
    """Return the verdict of a job for which there was no time."""
    submission = Submission(manager=case.ask.manager, fields=case.ask.fields, origin=origin(case.ask))
    reason = (
        f"deciding took longer than the limit of {case.limit_s * 1000:g} ms allows; the next such job may be in time"
    )
    verdict = kept(submission, case.snapshot, reason, job=case.job, told=True)
    marked = verdict.marked and (late(verdict.marked[0]), verdict.marked[1])
    return replace(verdict, line=late(verdict.line), marked=marked)
