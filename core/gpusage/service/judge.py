"""The daemon's judge: it turns a question into a ruling, by the one way of `gpusage.verdict`.

Invariants:

1. `Judge.rule` never raises; whatever goes wrong, the job stays as its user wrote it.
2. In the mode ``observe`` users get no message. Every mode leaves a mark.
3. A card is a hint that a user can forge: it decides how much of a GPU the user gets, never whether.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpusage.error_text import described, sentence
from gpusage.graphs.card.text import graph_of, unpacked
from gpusage.mark import mark_of
from gpusage.service.budget import SPENT, Budget
from gpusage.service.ledger import Claim, claim_of
from gpusage.service.memo import Memo
from gpusage.service.precedents import Traced
from gpusage.service.protocol import DECLINED, KEPT, Answer, Ask
from gpusage.service.state import Snapshot
from gpusage.verdict import Verdict, judge, leave_alone
from gpusage_hooks.errors import GpuUsageError, PluginError
from gpusage_hooks.types import Cluster, Code, Job, ModelGraph, Submission

REMEMBERED_BYTES = 3_000_000
"""Of cards as they are when unpacked; what is kept of one, predictions included, takes up to 20 times as much."""
LARGEST_REMEMBERED_BYTES = 64 * 1024
"""DenseNet-121 has 27,000."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """A verdict, and the answer that tells it.

    Attributes:
        verdict: ``None`` where nobody submitted anything that an adapter knows; there is no record then.
        spent: Its user's share of the judge's time was used up; it holds for this moment alone.
        failed: It came about by our own or a plugin's fault, and must not be remembered.
        seen: The fields that were looked at, ``None`` where it holds for this question alone.
        claim: What it takes of the cluster where it is carried out; ``None`` for nothing.
    """

    answer: Answer
    verdict: Verdict | None = None
    failed: bool = False
    spent: bool = False
    seen: frozenset[str] | None = None
    claim: Claim | None = None

    @property
    def is_lasting(self) -> bool:
        """Tell whether it holds as long as its snapshot: the room of the moment binds a job, or keeps it off nodes."""
        request = self.verdict.decision.request if self.verdict is not None else None
        is_of_the_moment = request is not None and bool(request.required_gpus or request.avoided_nodes)
        return not (self.failed or self.spent or is_of_the_moment)


class Judge:
    """Gives rulings, in one thread; remembers graphs by card."""

    def __init__(self) -> None:
        self._graphs: Memo[str, ModelGraph] = Memo(REMEMBERED_BYTES)
        self._budget = Budget()

    def rule(self, ask: Ask, snapshot: Snapshot, understood: Callable[[Job], None]) -> Ruling:
        """Return the answer to *ask* and its record; *understood* is called early, with the job in question."""
        fields = Traced(ask.fields)
        submission = Submission(manager=ask.manager, fields=fields, origin=origin(ask))
        begun_s = time.thread_time()
        ruling = self._safe(submission, snapshot, understood)
        self._budget.charge(submission.origin, time.thread_time() - begun_s, time.monotonic())
        return replace(ruling, seen=fields.seen() if ruling.is_lasting else None)

    def _safe(self, submission: Submission, snapshot: Snapshot, understood: Callable[[Job], None]) -> Ruling:
        premises = snapshot.premises
        if premises.killed is not None:
            return Ruling(verdict=leave_alone(submission, premises, premises.killed), answer=KEPT)
        job: Job | None = None
        try:
            job = premises.advisor.understand(submission)
            if job is None:
                return Ruling(answer=DECLINED)
            understood(job)
            return self._ruled(job, snapshot)
        except PluginError as error:
            _log.warning("%s: kept, because of a plugin: %s", submission.origin, sentence(error))
            return replace(silence(leave_alone(submission, premises, sentence(error), job)), failed=True)
        except GpuUsageError as error:
            return refusal(leave_alone(submission, premises, sentence(error), job))
        except Exception as error:  # noqa: BLE001 - nothing may cost a job
            reason = described(error)
            _log.error("%s: kept, because of a fault: %s", submission.origin, reason)
            return replace(silence(leave_alone(submission, premises, reason, job)), failed=True)

    def _ruled(self, job: Job, snapshot: Snapshot) -> Ruling:
        submission, premises = job.submission, snapshot.premises
        cluster = snapshot.clusters.get(submission.manager)
        if cluster is None and job.model_request is not None:
            trouble = snapshot.troubles.get(submission.manager, f"{submission.manager} has not been seen yet")
            return silence(leave_alone(submission, premises, trouble, job))
        if self._budget.is_spent(submission.origin, time.monotonic()):
            return replace(refusal(leave_alone(submission, premises, SPENT, job)), spent=True)
        seen = cluster or Cluster(manager=submission.manager, version="", pools=())
        cluster = snapshot.ledger.left_of(replace(seen, rivals=snapshot.rivals.of(seen.manager)))
        verdict = judge(job, cluster, premises, lambda job, _: self._graph(job.card))
        return replace(ruling(verdict), claim=None if job.dry_run else claim_of(verdict, cluster))

    def _graph(self, card: str | None) -> ModelGraph | None:
        if not card:
            return None
        graph = self._graphs.get(card)
        if graph is None:
            content = unpacked(card)
            graph = graph_of(content)
            if len(content) <= LARGEST_REMEMBERED_BYTES:
                self._graphs.put(card, graph, weight=len(content))
        return graph


def origin(ask: Ask) -> str:
    """Return who asked, for people."""
    user = ask.fields.get("user_id")
    return f"uid {user}" if user else ask.fields.get("user", "")


def ruling(verdict: Verdict) -> Ruling:
    """Return the ruling that carries out *verdict*, and tells it as the site's mode has it.

    A dry run is told, and nothing of it is changed: it is not recorded, and any user may say that a job is one.
    """
    code, is_real = verdict.carried_out, not verdict.is_dry_run
    answer = Answer(
        code=code,
        message="" if verdict.mode == "observe" else verdict.line,
        settings=verdict.rendered.fields if code is Code.REWRITE and is_real else {},
        mark=_mark(verdict) if verdict.is_marked and is_real else "",
    )
    return Ruling(verdict=verdict, answer=answer)


def silence(verdict: Verdict) -> Ruling:
    """Return the ruling that the job stays as it is, which its user cannot mend and is not told."""
    return Ruling(verdict=verdict, answer=Answer(code=Code.KEEP, mark=_mark(verdict) if verdict.wish else ""))


def refusal(verdict: Verdict) -> Ruling:
    """Return the ruling that the job stays as it is, for a reason that its user is told outside the mode ``observe``.

    The user named a model, though perhaps in a way that cannot be read, so the job has a mark.
    """
    reason = "" if verdict.mode == "observe" else verdict.decision.reasons[0]
    return Ruling(verdict=verdict, answer=Answer(code=Code.KEEP, message=reason, mark=_mark(verdict)))


def _mark(verdict: Verdict) -> str:
    return mark_of(verdict.record(origin="", number="", decided_at_s=0.0)).rest
