"""From a question to a verdict: understand the submission, decode its card, decide, put it into the manager's words.

Invariants:

1. `Judge.verdict` never raises; whatever goes wrong, the job stays as its user wrote it.
2. Only the mode `enforce` changes what a job asks for; `observe` does not even say a word. Every mode leaves a mark.
3. A card is a hint that a user can forge: it decides how much of a GPU the user gets, never whether.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpusage.advice import explain
from gpusage.graphs.card.text import graph_of, unpacked
from gpusage.mark import START, mark_of
from gpusage.predictors.identity import forget
from gpusage.service.budget import SPENT, Budget
from gpusage.service.memo import Memo
from gpusage.service.precedents import Traced
from gpusage.service.protocol import DECLINED, KEPT, Ask, answer_line, with_mark
from gpusage.service.state import Snapshot
from gpusage_hooks.errors import GpuUsageError, PluginError
from gpusage_hooks.types import (
    Cluster,
    Code,
    Decision,
    DecisionRecord,
    GpuRequest,
    Job,
    ModelGraph,
    ModelRequest,
    Rendered,
    Submission,
)

REMEMBERED_BYTES = 3_000_000
"""Of cards as they are when unpacked; what is kept of one takes up to 20 times as much."""
LARGEST_REMEMBERED_BYTES = 64 * 1024
"""DenseNet-121 has 27,000."""
REMEMBERED_CHARACTERS = 4_000_000

_log = logging.getLogger(__name__)
_Decisions = Memo[tuple[str, str | None, str | None, GpuRequest, ModelRequest | None], Decision]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is answered, and what is recorded of it.

    Attributes:
        line: The answer, its newline included.
        record: Lacks only the time; ``None`` where nobody submitted anything that an adapter knows.
        spent: Its user's share of the judge's time was used up; it holds for this moment alone.
        failed: It came about by our own or a plugin's fault, and must not be remembered.
        seen: The fields that were looked at, ``None`` where it holds for this question alone.
        marked: The answer with the mark that the job is to carry, in two parts around the record's number; ``None``
            where nothing is to be left on it.
    """

    line: bytes
    record: DecisionRecord | None
    failed: bool = False
    spent: bool = False
    seen: frozenset[str] | None = None
    marked: tuple[bytes, bytes] | None = None


class Judge:
    """Gives verdicts, in one thread; remembers graphs by card, and decisions for as long as a snapshot lives."""

    def __init__(self) -> None:
        self._graphs: Memo[str, ModelGraph] = Memo(REMEMBERED_BYTES)
        self._read_bytes = 0
        self._decisions: _Decisions = Memo(REMEMBERED_CHARACTERS)
        self._snapshot: Snapshot | None = None
        self._budget = Budget()

    def verdict(self, ask: Ask, snapshot: Snapshot, understood: Callable[[Job], None]) -> Verdict:
        """Return what to answer to *ask* and what to record of it; *understood* hears early what is asked about."""
        fields = Traced(ask.fields)
        submission = Submission(manager=ask.manager, fields=fields, origin=origin(ask))
        begun_s = time.thread_time()
        verdict = self._safe(submission, snapshot, understood)
        self._budget.charge(submission.origin, time.thread_time() - begun_s, time.monotonic())
        return replace(verdict, seen=None if verdict.failed or verdict.spent else fields.seen())

    def _safe(self, submission: Submission, snapshot: Snapshot, understood: Callable[[Job], None]) -> Verdict:
        if snapshot.killed is not None:
            return kept(submission, snapshot, snapshot.killed)
        job: Job | None = None
        try:
            job = snapshot.advisor.plugins.hook.parse_submission(submission=submission)
            if job is None:
                return Verdict(line=DECLINED, record=None)
            understood(job)
            return self._considered(job, snapshot)
        except PluginError as error:
            _log.warning("%s: kept, because of a plugin: %s", submission.origin, error)
            return kept(submission, snapshot, str(error), job=job, failed=True)
        except GpuUsageError as error:
            return kept(submission, snapshot, str(error), job=job, told=True)
        except Exception as error:  # noqa: BLE001 - nothing may cost a job
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__} in {where.filename}:{where.lineno}: {error}"
            _log.error("%s: kept, because of a fault: %s", submission.origin, reason)
            return kept(submission, snapshot, reason, job=job, failed=True)

    def _considered(self, job: Job, snapshot: Snapshot) -> Verdict:
        submission = job.submission
        cluster = snapshot.clusters.get(submission.manager)
        if cluster is None and job.model_request is not None:
            trouble = snapshot.troubles.get(submission.manager, f"{submission.manager} has not been seen yet")
            return kept(submission, snapshot, trouble, job=job)
        cluster = cluster or Cluster(manager=submission.manager, version="", pools=())
        decision = self._decided(job, cluster, snapshot)
        if decision is None:
            return replace(kept(submission, snapshot, SPENT, job=job, told=True), spent=True)
        decision, rendered = snapshot.advisor.render(job, decision, cluster)
        return _verdict(job, decision, rendered, snapshot)

    def _decided(self, job: Job, cluster: Cluster, snapshot: Snapshot) -> Decision | None:
        """Return the decision, which follows from card, wish and request alone as long as the snapshot lives.

        There is none where it would have to be made, and the user has no time of ours left.
        """
        if snapshot is not self._snapshot:
            self._snapshot, self._decisions = snapshot, Memo(REMEMBERED_CHARACTERS)
        key = (job.submission.manager, job.card, job.card_trouble, job.request, job.model_request)
        decision = self._decisions.get(key)
        if decision is None and not self._budget.is_spent(job.submission.origin, time.monotonic()):
            decision = self._made(job, cluster, snapshot)
            self._decisions.put(key, decision, weight=2000 + len(job.card or ""))
        return decision

    def _made(self, job: Job, cluster: Cluster, snapshot: Snapshot) -> Decision:
        graph = self._graph(job.card) if job.card and job.model_request is not None else None
        return snapshot.advisor.decide(job, graph, cluster)

    def _graph(self, card: str) -> ModelGraph:
        graph = self._graphs.get(card)
        if graph is None:
            content = unpacked(card)
            self._make_room(len(content))
            graph = graph_of(content)
            if len(content) <= LARGEST_REMEMBERED_BYTES:
                self._graphs.put(card, graph, weight=len(content))
        return graph

    def _make_room(self, content_bytes: int) -> None:
        """Have predictors forget the graphs that they saw, before they hold more than is kept here."""
        self._read_bytes += content_bytes
        if self._read_bytes > REMEMBERED_BYTES:
            forget()
            self._read_bytes = content_bytes


def origin(ask: Ask) -> str:
    """Return who asked, for people."""
    user = ask.fields.get("user_id")
    return f"uid {user}" if user else ask.fields.get("user", "")


def unchanged(job: Job) -> Rendered:
    """Return the request as it was."""
    return Rendered(before=job.request_text, after=job.request_text, fields={})


def kept(
    submission: Submission,
    snapshot: Snapshot,
    reason: str,
    *,
    job: Job | None = None,
    told: bool = False,
    failed: bool = False,
) -> Verdict:
    """Return a verdict that changes nothing.

    Args:
        submission: What was handed over.
        snapshot: Its mode is recorded.
        reason: Why, for the record.
        job: What was understood, where anything was.
        told: The user can mend it, and is told outside the mode ``observe``.
        failed: As in `Verdict`.
    """
    request = job.request if job else GpuRequest(gpu_count=0)
    decision = Decision(code=Code.KEEP, request=request, reasons=(reason,), plugin=__name__)
    rendered = unchanged(job) if job else Rendered(before="", after="", fields={})
    line = answer_line("KEEP", reason) if told and snapshot.configuration.mode != "observe" else KEPT
    record = _record(submission, decision, rendered, snapshot, job)
    return Verdict(line=line, record=record, failed=failed, marked=_marked(line, record, snapshot, named=told))


def _verdict(job: Job, decision: Decision, rendered: Rendered, snapshot: Snapshot) -> Verdict:
    assumed = job.model_request.assumed if job.model_request else ()
    told = explain(decision, rendered, assumed)
    line = (
        DECLINED if decision.code is Code.DECLINE else _SPEAKERS[snapshot.configuration.mode](decision, rendered, told)
    )
    record = _record(job.submission, decision, rendered, snapshot, job)
    return Verdict(line=line, record=record, marked=_marked(line, record, snapshot, named=False))


def _observed(decision: Decision, rendered: Rendered, told: str) -> bytes:  # noqa: ARG001 - one signature for every mode
    return KEPT


def _advised(decision: Decision, rendered: Rendered, told: str) -> bytes:  # noqa: ARG001 - as above
    return answer_line("KEEP", ("advice only: " if decision.code is Code.REWRITE else "") + told)


def _enforced(decision: Decision, rendered: Rendered, told: str) -> bytes:
    return answer_line(decision.code.value, told, rendered.fields if decision.code is Code.REWRITE else {})


_SPEAKERS = {"observe": _observed, "advise": _advised, "enforce": _enforced}


def _marked(line: bytes, record: DecisionRecord, snapshot: Snapshot, *, named: bool) -> tuple[bytes, bytes] | None:
    """Return the answer with a mark: none where the job named no model or opted out, or the kill switch is on.

    Args:
        line: The answer.
        record: What the mark tells.
        snapshot: Tells of the kill switch.
        named: A model was named, though its name could not be read.
    """
    wanted = named or (record.model is not None and record.decision.code is not Code.DECLINE)
    return with_mark(line, START, mark_of(record).rest) if wanted and snapshot.killed is None else None


def _record(
    submission: Submission, decision: Decision, rendered: Rendered, snapshot: Snapshot, job: Job | None
) -> DecisionRecord:
    wish = job.model_request if job else None
    return DecisionRecord(
        decided_at_s=0.0,
        manager=submission.manager,
        origin=submission.origin,
        mode=snapshot.configuration.mode,
        decision=decision,
        rendered=rendered,
        model=wish.model if wish else None,
        workload=wish.workload if wish else None,
    )
