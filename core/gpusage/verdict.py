"""The one way from a submission to a verdict: understand it, read its model, decide, put that in the manager's words.

gpusaged, `gpusage validate` and what submits jobs itself all come this way. They hand over what they differ in: how a
model is read, what the cluster is, and the mode.

Invariants:

1. Nothing is read, asked or kept here, but through what is handed over.
2. With the kill switch on nothing is read or predicted here, and every job stays as it is.
3. Only the mode ``enforce`` carries out a rewrite; in the other modes it is held back, and the record tells both.
4. For a job that can be judged but not changed, ``enforce`` is ``advise``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gpusage.advice import explain
from gpusage.advisor import Advisor
from gpusage.configuration import HistoryMode, SiteMode
from gpusage.history.features import request_words
from gpusage.learning.identity import identity_of
from gpusage.own_settings import settled_request
from gpusage.plugins.hooks import NOBODY
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import (
    Cluster,
    Code,
    Decision,
    DecisionRecord,
    GpuRequest,
    Job,
    JobIdentity,
    Known,
    ModelGraph,
    ModelRequest,
    Rendered,
    Submission,
)

OBSERVED_ONLY = "history is observed only, as [learning] history says"
ReadModel = Callable[[Job, ModelRequest], ModelGraph | None]
"""Returns the graph of a job's model; ``None`` where no description of it came with the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Premises:
    """What every verdict of the moment rests on.

    Attributes:
        advisor: Its rules are the site's.
        mode: The site's.
        enforce_in: As in `Configuration`.
        killed: Why nothing may be rewritten, where the kill switch is on.
        history: What is done for jobs that name no model.
    """

    advisor: Advisor
    mode: SiteMode
    enforce_in: tuple[str, ...] = ()
    killed: str | None = None
    history: HistoryMode = "off"

    def of(self, job: Job, cluster: Cluster) -> Premises:
        """Return those for *job*: it is observed where it may run outside the partitions in which a site enforces."""
        partitions = {*(job.request.partitions or (cluster.default_partition,))}
        if self.mode != "enforce" or not self.enforce_in or partitions <= {*self.enforce_in}:
            return self
        return replace(self, mode="observe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a submission.

    Attributes:
        job: What was understood of it; ``None`` where nothing was.
        model: What tells its model again; ``None`` where that was not read.
        predicted_utilization: As in `DecisionRecord`.
        decision: As it would be carried out in the mode ``enforce``.
        rendered: The same in the manager's own words.
        mode: The site's, or ``advise`` where its predictions miss too often for this job; ``observe`` where a job names
            no model, and its history has not earned more, or may run where the site does not enforce.
        told: What history tells of such a job, as in `DecisionRecord`; ``None`` of any other.
    """

    submission: Submission
    job: Job | None
    decision: Decision
    rendered: Rendered
    mode: SiteMode
    model: JobIdentity | None = None
    predicted_utilization: float | None = None
    told: Mapping[str, Known] | None = None

    @property
    def is_marked(self) -> bool:
        """Tell whether the job carries a mark: it says something to us, or its site has its history looked at."""
        return (self.wish is not None or self.told is not None) and self.carried_out is not Code.DECLINE

    @property
    def wish(self) -> ModelRequest | None:
        """What the job says of its model."""
        return self.job.model_request if self.job else None

    @property
    def is_dry_run(self) -> bool:
        """Tell whether nothing was submitted."""
        return self.job is not None and self.job.dry_run

    @property
    def held_back(self) -> str:
        """Why the request stays as it is although a rewrite was decided on; ``""`` where that is not so."""
        return why_held_back(self.mode, None) if self.decision.code is Code.REWRITE else ""

    @property
    def carried_out(self) -> Code:
        """What is done to the job."""
        return Code.KEEP if self.held_back else self.decision.code

    @property
    def line(self) -> str:
        """The verdict for its user, on one line; empty where it is not ours, or says nothing and is kept."""
        if self.told is not None and self.decision.code is not Code.REWRITE:
            return ""
        line = explain(self.decision, self.rendered, self.wish.assumed if self.wish else ())
        return f"advice only in mode {self.mode}: {line}" if self.held_back else line

    def record(
        self, *, origin: str, number: str, decided_at_s: float, fields: Mapping[str, str] | None = None
    ) -> DecisionRecord:
        """Return what is recorded of it.

        Args:
            origin: Who submitted, for people.
            fields: Those of the submission in question, where the verdict was given on one that is like it.
            number: As `gpusage.store.numbers` gives them; ``""`` for none.
            decided_at_s: Seconds since 1970.
        """
        return DecisionRecord(
            decided_at_s=decided_at_s,
            manager=self.submission.manager,
            origin=origin,
            mode=self.mode,
            decision=self.decision,
            rendered=self.rendered,
            model=self.wish.model if self.wish else None,
            workload=self.wish.workload if self.wish else None,
            number=number,
            identity=self._identity(fields),
            predicted_utilization=self.predicted_utilization,
            told=self.told or {},
        )

    def _identity(self, fields: Mapping[str, str] | None) -> JobIdentity | None:
        if self.job is None or self.model is None:
            return None
        who = self.job.submitter
        who = who if fields is None else replace(who, fields=fields)
        return replace(
            self.model,
            user=who.user,
            account=who.account,
            job_name=who.job_name,
            script_digest=who.script_digest,
            request=request_words(self.job.request),
        )


def require_job(submission: Submission, advisor: Advisor) -> Job:
    """Return what a plugin understands of *submission*.

    Raises:
        GpuUsageError: It is malformed where it is addressed to us, a plugin is at fault, or none knows its manager.
    """
    job = advisor.understand(submission)
    if job is None:
        message = (
            f"Submission {submission.origin!r} must be one that a plugin understands; got no answer. "
            f"Install the plugin for {submission.manager}."
        )
        raise RequestError(message)
    return job


def judge(job: Job, cluster: Cluster, premises: Premises, read_model: ReadModel) -> Verdict:
    """Return what becomes of *job* on *cluster*.

    Raises:
        GpuUsageError: Its model cannot be read, or a plugin is at fault.
    """
    if premises.killed is not None:
        return leave_alone(job.submission, premises, premises.killed, job)
    premises, wish = premises.of(job, cluster), job.model_request
    if wish is None and premises.history != "off" and job.request.gpu_count:
        return _by_history(job, cluster, premises)
    graph = read_model(job, wish) if wish is not None and wish.enabled else None
    if wish is not None and graph is not None:
        wish = settled_request(wish, graph)
        job = replace(job, model_request=wish)
    advisor = premises.advisor.asked_by(job.submitter)
    decision, rendered = advisor.render(job, advisor.decide(job, graph, cluster), cluster)
    verdict = Verdict(submission=job.submission, job=job, decision=decision, rendered=rendered, mode=premises.mode)
    if wish is None or graph is None:
        return _advised(verdict, job.advice_only)
    predicted = advisor.told_by_graph(graph, wish.workload, decision.need) if decision.need else None
    verdict = replace(verdict, model=identity_of(graph, NOBODY), predicted_utilization=predicted)
    return _advised(verdict, job.advice_only or advisor.why_not_enforced(graph))


def _by_history(job: Job, cluster: Cluster, premises: Premises) -> Verdict:
    """Return what becomes of *job*, which names no model: observed only, until its history has earned more."""
    advisor = premises.advisor.asked_by(job.submitter)
    decision, told = advisor.decide_by_history(job, cluster)
    decision, rendered = advisor.render(job, decision, cluster)
    why = ""
    if decision.code is Code.REWRITE and premises.mode != "observe":
        may_earn = premises.history == "enforce"
        why = advisor.learned.trust.why_not(job.submitter.user) if may_earn else OBSERVED_ONLY
    decision = replace(decision, reasons=(*decision.reasons, why)) if why else decision
    verdict = Verdict(
        submission=job.submission,
        job=job,
        decision=decision,
        rendered=rendered,
        mode="observe" if why else premises.mode,
        model=JobIdentity(),
        told=told,
    )
    return _advised(verdict, job.advice_only)


def _advised(verdict: Verdict, why: str) -> Verdict:
    """Return *verdict*, where it changes the job and there is a reason *why* it must not, as advice only."""
    if not why or verdict.decision.code is not Code.REWRITE:
        return verdict
    decision = replace(verdict.decision, reasons=(why, *verdict.decision.reasons))
    return replace(verdict, decision=decision, mode="advise" if verdict.mode == "enforce" else verdict.mode)


def leave_alone(submission: Submission, premises: Premises, reason: str, job: Job | None = None) -> Verdict:
    """Return the verdict that *submission* stays as it is for *reason*; *job* is what was understood of it."""
    request = job.request if job else GpuRequest(gpu_count=0)
    text = job.request_text if job else ""
    return Verdict(
        submission=submission,
        job=job,
        decision=Decision(code=Code.KEEP, request=request, reasons=(reason,), plugin=__name__),
        rendered=Rendered(before=text, after=text, fields={}),
        mode=premises.mode,
    )


def why_held_back(mode: SiteMode, killed: str | None) -> str:
    """Return why no rewrite is carried out, one clause; ``""`` where it is.

    Args:
        mode: The site's.
        killed: As in `Premises`.
    """
    return killed or ("" if mode == "enforce" else f"nothing is changed in mode {mode}")
