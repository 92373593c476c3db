"""The second look at jobs that brought no description of their model: read it, ask gpusaged, change what still waits.

It is a client of gpusaged like job_submit, with a process of its own, so that gpusaged needs neither root's rights nor
SlurmUser's, and nothing that parses a model has them.

Invariants:

1. A job is decided once: its mark says so. One that could not be decided is tried again after `AGAIN_S`.
2. What its user changes, before or after, stays: a job is looked at again when its model has been read, and changed
   only where it is the same as before.
3. A user's jobs take turns with those of others, and a look ends in time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpusage.mark import parse_mark
from gpusage.service import client
from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.jobs.rows import update_job
from gpusage_slurm.late.change import changes
from gpusage_slurm.late.jobs import LateJob, late_job_ids, look_at, names_a_model
from gpusage_slurm.late.reading import may_read_for, read_card
from gpusage_slurm.submission.request import MANAGER

AGAIN_S = 600.0
LOOK_LIMIT_S = 120.0
ANSWER_LIMIT_S = 4.0

_CHANGES_REQUESTS = (23, 11)
_OLD = "Slurm of this version changes no waiting GPU into a share"
Outcome = Literal["decided", "advised", "not ours", "not read", "changed meanwhile", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What became of one job at a look.

    Attributes:
        why: More of it for people; may be empty.
    """

    job_id: str
    outcome: Outcome
    why: str = ""


@dataclass(slots=True, kw_only=True)
class SecondLook:
    """Looks at late jobs, again and again.

    Attributes:
        sockets: Where gpusaged may listen.
    """

    sockets: Sequence[str]
    _again_s: dict[str, float] = field(default_factory=dict)

    def look(self) -> list[Seen]:
        """Decide those that wait, and return what became of each.

        Raises:
            RequestError: slurmctld does not answer.
        """
        begun_s = time.monotonic()
        self._again_s = {job_id: again_s for job_id, again_s in self._again_s.items() if again_s > begun_s}
        seen = []
        for job_id in [job_id for job_id in late_job_ids() if job_id not in self._again_s]:
            if time.monotonic() > begun_s + LOOK_LIMIT_S:
                break
            job = _looked_at(job_id)
            if job is not None:
                seen.append(self._decided(job))
            self._again_s[job_id] = time.monotonic() + AGAIN_S
        return seen

    def _decided(self, job: LateJob) -> Seen:
        try:
            outcome, why = self._outcome(job)
        except RequestError as error:
            outcome, why = "undecided", str(error)
        return Seen(job_id=job.job_id, outcome=outcome, why=why)

    def _outcome(self, job: LateJob) -> tuple[Outcome, str]:
        card = ""
        if names_a_model(job.comment):
            if not may_read_for(job.uid):
                return "not read", f"its user has uid {job.uid}, and only root may read with the rights of others"
            card = read_card(job.comment, job.uid, job.folder)
            if look_at(job.job_id) != job:
                return "changed meanwhile", ""
        answer = self._answer(job, card)
        settings = changes(answer, job.admin_comment)
        if not settings:
            return ("undecided", "gpusaged was too late") if answer.get("overdue") else ("not ours", "")
        update_job(job.job_id, *settings)
        mark = parse_mark(answer["mark"])
        return "advised" if mark and mark.mode != "enforce" else "decided", str(mark)

    def _answer(self, job: LateJob, card: str) -> Mapping[str, str]:
        """Return what gpusaged says to the job with its *card*."""
        advice_only = "" if scontrol.version() >= _CHANGES_REQUESTS else _OLD
        fields = {**job.fields, "card": card, "advice_only": advice_only}
        question = {"v": 1, "manager": MANAGER, "fields": fields, "until_s": time.time() + ANSWER_LIMIT_S}
        socket = client.find_status(self.sockets)[0]
        answer = client.ask(socket, question, ANSWER_LIMIT_S)
        return {name: value for name, value in answer.items() if isinstance(value, str)}


def _looked_at(job_id: str) -> LateJob | None:
    try:
        return look_at(job_id)
    except RequestError:  # it has ended
        return None
