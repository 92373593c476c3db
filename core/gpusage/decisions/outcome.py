"""The one way from a submission to its outcome: parse it, read its model, decide, render that for the manager.

gpusaged, `gpusage validate` and programs that submit jobs themselves all come this way. They pass in what differs
between them: how a model is read, what the cluster is, and the mode.

Invariants:

1. Nothing is read, asked or kept here except through what is passed in.
2. With the kill switch on nothing is read or predicted here, and every job stays as it is.
3. Only the mode ``enforce`` carries out a rewrite; in the other modes it is held back, and the record says both.
4. For a job that can no longer be changed, ``enforce`` is ``advise``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gpusage.decisions.advice import explain
from gpusage.decisions.advisor import SHOWS_MODEL, Advisor
from gpusage.decisions.model_defaults import settled_request
from gpusage.experience.identity import job_identity
from gpusage.experience.learned import why_whole
from gpusage.plugins.hooks import NOBODY
from gpusage.settings.configuration import HistoryMode, SiteMode
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import (
    Cluster,
    Code,
    Decision,
    DecisionRecord,
    DecisionRequest,
    GpuRequest,
    Job,
    JobIdentity,
    ModelGraph,
    ModelRequest,
    ObservedFigures,
    RenderedDecision,
)

OBSERVED_ONLY = "history is observed only, as [learning] history says"
ReadModel = Callable[[Job, ModelRequest], ModelGraph | None]
"""Returns the graph of a job's model; ``None`` where no description of it came with the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionContext:
    """What all outcomes of one snapshot rest on.

    Attributes:
        advisor: Its rules are the site's.
        mode: The site's.
        enforce_in: As in `Configuration`.
        kill_reason: Why nothing may be rewritten, where the kill switch is on.
        history: What is done for jobs that name no model.
    """

    advisor: Advisor
    mode: SiteMode
    enforce_in: tuple[str, ...] = ()
    kill_reason: str | None = None
    history: HistoryMode = "off"

    def of(self, job: Job, cluster: Cluster) -> DecisionContext:
        """Return those for *job*: it is observed where it may run outside the partitions in which a site enforces."""
        partitions = {*(job.request.partitions or (cluster.default_partition,))}
        if self.mode != "enforce" or not self.enforce_in or partitions <= {*self.enforce_in}:
            return self
        return replace(self, mode="observe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a submission.

    Attributes:
        job: What was understood of it; ``None`` where nothing was.
        model: What its model is recognised by; ``None`` where that was not read.
        predicted_utilization: As in `DecisionRecord`.
        decision: As it would be carried out in the mode ``enforce``.
        rendered: The same in the manager's own words.
        mode: The site's, or ``advise`` where its predictions miss too often for this job; ``observe`` where a job names
            no model, and its history has not earned more, or may run where the site does not enforce.
        history_estimates: What history estimates for such a job, as in `DecisionRecord`; ``None`` for any other.
        is_exception: Whether the site's mode is ``enforce``, and a reason of this job alone makes it ``advise``.
    """

    submission: DecisionRequest
    job: Job | None
    decision: Decision
    rendered: RenderedDecision
    mode: SiteMode
    model: JobIdentity | None = None
    predicted_utilization: float | None = None
    history_estimates: Mapping[str, ObservedFigures] | None = None
    is_exception: bool = False

    @property
    def is_annotated(self) -> bool:
        """Return whether the job carries an annotation: it says something to us, or its site observes its history."""
        is_ours = self.model_request is not None or self._shows_model or self.history_estimates is not None
        return is_ours and self.applied_code is not Code.DECLINE

    @property
    def _shows_model(self) -> bool:
        return self.job is not None and self.job.shows_model

    @property
    def model_request(self) -> ModelRequest | None:
        """What the job says of its model."""
        return self.job.model_request if self.job else None

    @property
    def is_dry_run(self) -> bool:
        """Return whether nothing was submitted."""
        return self.job is not None and self.job.dry_run

    @property
    def held_back_reason(self) -> str:
        """Why the request stays as it is although a rewrite was decided on; ``""`` where that is not so."""
        return hold_reason(self.mode, None) if self.decision.code is Code.REWRITE else ""

    @property
    def applied_code(self) -> Code:
        """The code that is applied to the job."""
        return Code.KEEP if self.held_back_reason else self.decision.code

    @property
    def line(self) -> str:
        """The outcome for its user, on one line; empty where it is not ours, or says nothing and is kept."""
        is_silent = self.history_estimates is not None and not self._shows_model
        if is_silent and self.decision.code is not Code.REWRITE:
            return ""
        line = explain(self.decision, self.rendered, self.model_request.assumed if self.model_request else ())
        if not self.held_back_reason:
            return line
        return f"advice only: {line}" if self.is_exception else f"advice only in mode {self.mode}: {line}"

    def record(
        self, *, origin: str, number: str, decided_at_s: float, fields: Mapping[str, str] | None = None
    ) -> DecisionRecord:
        """Return its record for the store.

        Args:
            origin: Who submitted, for people.
            fields: Those of the submission in question, where the outcome is that of one like it.
            number: As `gpusage.store.annotation` gives them; ``""`` for none.
            decided_at_s: Seconds since 1970.
        """
        return DecisionRecord(
            decided_at_s=decided_at_s,
            manager=self.submission.manager,
            origin=origin,
            mode=self.mode,
            decision=self.decision,
            rendered=self.rendered,
            model=self.model_request.model if self.model_request else None,
            workload=self.model_request.workload if self.model_request else None,
            number=number,
            identity=self.identity(fields),
            predicted_utilization=self.predicted_utilization,
            history_estimates=self.history_estimates or {},
        )

    def identity(self, fields: Mapping[str, str] | None) -> JobIdentity | None:
        """Return what the job is recognised by; ``None`` where no model was read, and no history is kept.

        Args:
            fields: As in `record`.
        """
        if self.job is None or self.model is None:
            return None
        submitter = self.job.submitter if fields is None else replace(self.job.submitter, fields=fields)
        identity = job_identity(submitter, request=self.job.request)
        return replace(identity, fingerprint=self.model.fingerprint, family=self.model.family)


def require_job(submission: DecisionRequest, advisor: Advisor) -> Job:
    """Return *submission* as its manager's plugin parses it.

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


def decide_outcome(job: Job, cluster: Cluster, context: DecisionContext, read_model: ReadModel) -> Outcome:
    """Return the outcome of *job* on *cluster*.

    Raises:
        GpuUsageError: Its model cannot be read, or a plugin is at fault.
    """
    if context.kill_reason is not None:
        return keep_unchanged(job.submission, context, context.kill_reason, job)
    context, model_request = context.of(job, cluster), job.model_request
    if model_request is None and context.history != "off" and job.request.gpu_count:
        return _by_history(job, cluster, context)
    graph = read_model(job, model_request) if model_request is not None and model_request.enabled else None
    if model_request is not None and graph is not None:
        model_request = settled_request(model_request, graph)
        model_request = context.advisor.learned.with_first_run(model_request, job.submitter)
        job = replace(job, model_request=model_request)
    advisor = context.advisor.for_submitter(job.submitter)
    decision, rendered = advisor.render(job, advisor.decide(job, graph, cluster), cluster)
    if model_request is not None and model_request.first_run:
        decision = replace(decision, reasons=(*decision.reasons, f"as job {model_request.first_run}'s run showed"))
    outcome = Outcome(submission=job.submission, job=job, decision=decision, rendered=rendered, mode=context.mode)
    if model_request is None or graph is None:
        return outcome
    predicted = advisor.utilization_from_graph(graph, model_request.workload, decision.need) if decision.need else None
    outcome = replace(outcome, model=job_identity(NOBODY, graph=graph), predicted_utilization=predicted)
    return _advised(outcome, advisor.why_not_enforced(graph))


def _by_history(job: Job, cluster: Cluster, context: DecisionContext) -> Outcome:
    """Return the outcome of *job*, which names no model: observed only, until its history has earned trust."""
    advisor = context.advisor.for_submitter(job.submitter)
    decision, history_estimates = advisor.decide_by_history(job, cluster)
    decision, rendered = advisor.render(job, decision, cluster)
    why = ""
    if decision.code is Code.REWRITE and context.mode != "observe":
        may_earn = context.history == "enforce"
        why = advisor.learned.trust.why_not(job.submitter.user) if may_earn else OBSERVED_ONLY
        why = why or why_whole(advisor.learned.failures, "", job.submitter)
    shows = SHOWS_MODEL if job.shows_model else ""
    decision = replace(decision, reasons=(*decision.reasons, *filter(None, (why, shows))))
    return Outcome(
        submission=job.submission,
        job=job,
        decision=decision,
        rendered=rendered,
        mode="observe" if why else context.mode,
        model=JobIdentity(),
        history_estimates=history_estimates,
    )


def _advised(outcome: Outcome, why: str) -> Outcome:
    """Return *outcome* as advice only, where it changes the job and there is a reason *why* it must not."""
    if not why or outcome.decision.code is not Code.REWRITE:
        return outcome
    decision = replace(outcome.decision, reasons=(why, *outcome.decision.reasons))
    if outcome.mode != "enforce":
        return replace(outcome, decision=decision)
    return replace(outcome, decision=decision, mode="advise", is_exception=True)


def keep_unchanged(
    submission: DecisionRequest, context: DecisionContext, reason: str, job: Job | None = None
) -> Outcome:
    """Return the outcome that *submission* stays as it is for *reason*; *job* is what was parsed of it."""
    request = job.request if job else GpuRequest(gpu_count=0)
    text = job.request_text if job else ""
    return Outcome(
        submission=submission,
        job=job,
        decision=Decision(code=Code.KEEP, request=request, reasons=(reason,), plugin=__name__),
        rendered=RenderedDecision(before=text, after=text, fields={}),
        mode=context.mode,
    )


def hold_reason(mode: SiteMode, kill_reason: str | None) -> str:
    """Return why no rewrite is carried out, one clause; ``""`` where it is.

    Args:
        mode: The site's.
        kill_reason: As in `DecisionContext`.
    """
    return kill_reason or ("" if mode == "enforce" else f"nothing is changed in mode {mode}")
