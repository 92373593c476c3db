"""The one path from a submission to its outcome: parse it, read its model, predict, decide, render for its manager.

gpusaged, `gpusage validate`, `gpusage yarn submit` and the Python API all come this way. They pass in what differs
between them: how a model is read, the cluster, and the mode. Plugins answer; the advisor knows no workload manager.

Invariants:

1. Nothing is read, asked or kept here except through a plugin, or what the caller passes in.
2. With the kill switch on nothing is read or predicted here, and every job stays as it is.
3. An expected refusal is a decision, not an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpusage.decisions.outcome import Outcome
from gpusage.decisions.prediction import Predictor, request_with_model_settings, require_answer
from gpusage.devices.catalogue import Catalogue, site_catalogue
from gpusage.experience.identity import job_identity
from gpusage.experience.learned import describe_jobs, why_whole
from gpusage.experience.unnamed_jobs import BY_HISTORY, NO_GRAPH, estimates_by_gpu, reasons_of
from gpusage.experience.unnamed_jobs import policy_input as input_by_history
from gpusage.graphs.reader import folder_rejection
from gpusage.plugins.hooks import NOBODY
from gpusage.plugins.loading import load_hooks
from gpusage.policies.candidates import admits, no_allowed_type_error, step_times_s, without_forbidden
from gpusage.policies.share_price import priced_percents
from gpusage.policies.sharing import SharePrice, may_share, price_list
from gpusage.store.annotation import EXCLUDES
from gpusage_hooks.comment import MODEL_NAMES
from gpusage_hooks.errors import GpuUsageError, GraphError, PluginError, RequestError
from gpusage_hooks.managers import Context, ManagerSettings
from gpusage_hooks.types import (
    STAGES,
    Candidate,
    Cluster,
    Code,
    Decision,
    DecisionRequest,
    GpuRequest,
    Job,
    JobIdentity,
    ModelGraph,
    ModelRequest,
    ObservedFigures,
    PolicyInput,
    Price,
    RenderedDecision,
    Rules,
    Stage,
    Workload,
)

if TYPE_CHECKING:
    from gpusage.settings.configuration import Configuration, HistoryMode, SiteMode

SHOWS_MODEL = "learn=on: this run shows the model"
NO_CARD = "no description of the model came with the job"
NO_WORDS = "this cluster cannot express it: its GPUs have different numbers of MPS units, or no features"
OBSERVED_ONLY = "history is observed only, as [learning] history says"
ReadModel = Callable[[Job, ModelRequest], ModelGraph | None]
"""Returns the graph of a job's model; ``None`` where no description of it came with the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisor(Predictor):
    """Decides what a job should request, by what its model needs.

    Attributes:
        rules: The site's, for policies.
        settings: Of each workload manager, by its name.
        mode: The site's.
        enforce_in: As in `Configuration`.
        kill_reason: Why nothing may be rewritten, where the kill switch is on.
        history: What is done for jobs that name no model.
    """

    rules: Rules = Rules()
    settings: Mapping[str, ManagerSettings] = field(default_factory=dict)
    mode: SiteMode = "enforce"
    enforce_in: tuple[str, ...] = ()
    kill_reason: str | None = None
    history: HistoryMode = "off"

    def configured(self, configuration: Configuration) -> Advisor:
        """Return the advisor of a site: with its rules, its settings of workload managers, and its GPUs."""
        rates, gpus = configuration.network.gbit_per_s, configuration.gpus
        catalogue = site_catalogue(self.catalogue, tuple(rates.items()), tuple(gpus.aliases.items()))
        if gpus.calibration:
            from gpusage.devices.calibration import calibrated  # few sites have one

            catalogue, _ = calibrated(gpus.calibration, catalogue)
        return replace(self, rules=configuration.rules, settings=configuration.managers, catalogue=catalogue)

    def context(self, manager: str) -> Context:
        """Return the context of the hooks of the workload manager *manager*."""
        settings = self.settings.get(manager, ManagerSettings())
        return Context(settings=settings, catalogue=self.catalogue, model_names=self.model_names)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return how models are named: those that gpusage reads, then those of other plugins."""
        return (*MODEL_NAMES, *self.hooks.describe_model_names())

    def read(self, source: str, shape: Mapping[str, Sequence[int]] | None = None) -> ModelGraph:
        """Return the graph of the model at *source*.

        Raises:
            GraphError: No reader knows the format, or the one that does cannot read it.
        """
        if (graph := self.hooks.read_model(source, shape or {})) is not None:
            return graph
        message = folder_rejection(source) or (
            f"Model {source!r} must be an ONNX file, a .pt2 program, a Hugging Face folder, a saved card, "
            "or a name such as 'timm:resnet50'; got none of these. Check the path."
        )
        raise GraphError(message)

    def parse(self, submission: DecisionRequest) -> Job:
        """Return *submission* as its manager's plugin parses it.

        Raises:
            GpuUsageError: It is malformed where it is addressed to us, a plugin is at fault, or none knows its manager.
        """
        if (job := self.hooks.parse_submission(submission, self.context(submission.manager))) is not None:
            return job
        message = (
            f"Submission {submission.origin!r} must be one that a plugin understands; got no answer. "
            f"Install the plugin for {submission.manager}."
        )
        raise RequestError(message)

    def advise(self, job: Job, cluster: Cluster, read_model: ReadModel) -> Outcome:
        """Return the outcome of *job* on *cluster*.

        Raises:
            GpuUsageError: Its model cannot be read, or a plugin is at fault.
        """
        if self.kill_reason is not None:
            return self.keep_unchanged(job.submission, self.kill_reason, job)

        # The rest is for this job's submitter, and only observed where it may run outside the enforcing partitions.
        partitions = {*(job.request.partitions or (cluster.default_partition,))}
        is_outside = self.mode == "enforce" and bool(self.enforce_in) and not partitions <= {*self.enforce_in}
        if job.submitter is not self.submitter or is_outside:
            mode: SiteMode = "observe" if is_outside else self.mode
            return replace(self, submitter=job.submitter, mode=mode).advise(job, cluster, read_model)
        request = job.model_request
        measured = self.learned.measured(job.first_run, job.submitter) if job.first_run else {}
        if request is None and job.request.gpu_count and (measured or self.history != "off"):
            return self._advise_by_history(job, cluster, measured)

        # A graph has the settings of its file, and the job those that its first run showed.
        graph = read_model(job, request) if request is not None and request.enabled else None
        if request is not None and graph is not None:
            request = request_with_model_settings(request, graph, job.request.gpu_count)
            request = self.learned.with_first_run(request, job.submitter)
            job = replace(job, model_request=request)

        # Predict and decide, then put it into the manager's words, which may not be able to express it.
        decision = self.decide(job, graph, cluster)
        if graph is not None and decision.request.slice_type:
            decision = self.learned.without_failed_slice(decision, graph, job.submitter)
        decision, rendered = self._render(job, decision, cluster)
        if request is not None and request.first_run:
            decision = replace(decision, reasons=(*decision.reasons, f"as {describe_jobs(request.first_run)} showed"))
        outcome = Outcome(submission=job.submission, job=job, decision=decision, rendered=rendered, mode=self.mode)
        if request is None or graph is None:
            return outcome

        # A later run of the job is recognised by its model, and its usage compared with what the model alone predicts.
        need = decision.need
        predicted = None if need is None else self.utilization_from_graph(graph, request.workload, need)
        outcome = replace(outcome, model=job_identity(NOBODY, graph=graph), predicted_utilization=predicted)
        return outcome.as_advice(self.learned.why_not_enforced(graph, job.submitter, decision))

    def _advise_by_history(self, job: Job, cluster: Cluster, measured: Mapping[str, ObservedFigures]) -> Outcome:
        """Return the outcome of *job* without a model: what was *measured* counts; history must have earned trust."""
        decision, estimates = self.decide_by_history(job, cluster, measured)
        decision, rendered = self._render(job, decision, cluster)
        why = ""
        if decision.code is Code.REWRITE and self.mode != "observe":
            earned = self.learned.trust.why_not(job.submitter.user) if self.history == "enforce" else OBSERVED_ONLY
            why = ("" if measured else earned) or why_whole(self.learned.failures, "", job.submitter)
        reasons = [*decision.reasons, *([why] if why else []), *([SHOWS_MODEL] if job.shows_model else [])]
        return Outcome(
            submission=job.submission,
            job=job,
            decision=replace(decision, reasons=tuple(reasons)),
            rendered=rendered,
            mode="observe" if why else self.mode,
            model=JobIdentity(),
            history_estimates={} if measured else estimates,  # trust in history rests on its own estimates
        )

    def keep_unchanged(self, submission: DecisionRequest, reason: str, job: Job | None = None) -> Outcome:
        """Return the outcome that *submission* stays as it is for *reason*; *job* is its parsed form, if any."""
        # Of a submission that nobody parsed, nothing is known of its request.
        request = job.request if job else GpuRequest(gpu_count=0)
        text = job.request_text if job else ""
        return Outcome(
            submission=submission,
            job=job,
            decision=Decision(code=Code.KEEP, request=request, reasons=(reason,), plugin=__name__),
            rendered=RenderedDecision(before=text, after=text, fields={}),
            mode=self.mode,
        )

    def decide(self, job: Job, graph: ModelGraph | None, cluster: Cluster) -> Decision:
        """Return the decision on *job*, whose model is *graph*.

        Raises:
            PluginError: A plugin breaks the contract.
        """
        model_request = job.model_request
        if model_request is None and job.shows_model:
            return _keep_decision(job, SHOWS_MODEL)
        if model_request is None or not model_request.enabled:
            reason = "the job names no model" if model_request is None else "the job opted out with gpusage=off"
            return Decision(code=Code.DECLINE, request=job.request, reasons=(reason,), plugin=__name__)
        if graph is None:
            troubles = (job.card_trouble,) if job.card_trouble else ()
            return _keep_decision(job, *((*job.request.obstacles, *troubles) or (NO_CARD,)))
        workload, alone = model_request.workload, model_request.workload.alone
        try:
            policy_input = self._predicted_input(job, graph, cluster)
            doubt = self.step_doubt(graph, workload)
        except PluginError:
            raise  # not for the user to mend
        except GpuUsageError as error:
            return _keep_decision(job, str(error))
        decision = self._through_policies(policy_input)

        # Where it rests on earlier runs, a reason says so.
        evidence = self.find(graph, workload).describe(decision.need.gpu if decision.need else "")
        if evidence and alone.utilization is not None and self.without_contradicted_values(graph, workload) != workload:
            at = f" for batch {alone.batch_size}" if alone.batch_size else ""
            evidence += f", not {100 * alone.utilization:.0f} % as you gave{at}"
        return replace(decision, reasons=(*decision.reasons, *filter(None, (evidence, doubt))))

    def decide_by_history(
        self, job: Job, cluster: Cluster, measured: Mapping[str, ObservedFigures] | None = None
    ) -> tuple[Decision, Mapping[str, ObservedFigures]]:
        """Return the decision on *job*, which names no model, and its estimates by GPU, or what was *measured*.

        Raises:
            PluginError: A plugin breaks the contract.
        """
        # A job without a model is seen by its figures alone: which GPU types it runs on, and how fast, is not known.
        job = replace(job, request=self._allowed_repeats(job.request, cluster))
        request = job.request
        cluster = cluster.within(request.partitions, request.scopes, request.node_features)
        gpus = {pool.gpu: self.catalogue.find(pool.gpu) for pool in cluster.pools if pool.gpu is not None}
        rows = [*gpus.values()]
        answers = self.hooks.find_observed_figures(NO_GRAPH, Workload(), rows, self.submitter)
        estimates = measured or estimates_by_gpu(job, rows, answers, self.learned.history, self.catalogue.find)
        policy_input = input_by_history(job, cluster, gpus, estimates, self.rules)
        if policy_input is None:
            return _keep_decision(job, *reasons_of(estimates), *request.obstacles), estimates
        decision = self._through_policies(policy_input, BY_HISTORY)
        return replace(decision, reasons=(*reasons_of(estimates), *decision.reasons), step_times_s={}), estimates

    def share_prices(self, job: Job, graph: ModelGraph, cluster: Cluster, decision: Decision) -> tuple[SharePrice, ...]:
        """Return the price of each share for *job*, and why *decision* takes it or not; none where it cannot share.

        Raises:
            GpuUsageError: Nothing can be predicted for it.
        """
        return price_list(self._predicted_input(job, graph, cluster), decision)

    def _predicted_input(self, job: Job, graph: ModelGraph, cluster: Cluster) -> PolicyInput:
        """Return what policies decide by: the needs of *job* on each GPU that it may have, and the prices of shares."""
        request = self._allowed_repeats(job.request, cluster)
        workload = job.model_request.workload if job.model_request is not None else Workload()
        workload = self.without_contradicted_values(graph, workload)
        request, cluster = self._without_forbidden(request, cluster, workload.forbidden_gpus)

        pools = [pool for pool in cluster.pools if pool.gpu is not None]
        gpus = tuple(self.catalogue.find(pool.gpu or "") for pool in pools)
        if request.gpu_count > 1:
            from gpusage.decisions.several_gpus import predict_several  # few jobs ask for several

            workload, needs, divided = predict_several(self, graph, job, workload, gpus)
        else:
            needs, divided = self.predict(graph, workload, gpus), (None,) * len(gpus)
        known = self.observed_figures(graph, workload, gpus)
        shares: Sequence[tuple[Price, ...]] = [()] * len(gpus)
        if may_share(request, workload, cluster, self.rules.sharing):
            shares = self._prices(graph, workload, gpus, priced_percents(self.rules.sharing), known)
        candidates = tuple(
            Candidate(pool=pool, gpu=gpu, need=need, shares=prices, known=figures, divided_need=least)
            for pool, gpu, need, prices, figures, least in zip(pools, gpus, needs, shares, known, divided, strict=True)
        )
        return PolicyInput(
            request=request,
            workload=workload,
            candidates=candidates,
            cluster=cluster,
            rules=self.rules,
            submitter=job.submitter,
        )

    def _allowed_repeats(self, request: GpuRequest, cluster: Cluster) -> GpuRequest:
        """Return *request* as the site and its cluster allow it: it runs again only where both allow that."""
        return request if self.rules.sharing.rescue and cluster.repeats else replace(request, repeatable=False)

    def _without_forbidden(
        self, request: GpuRequest, cluster: Cluster, names: Sequence[str]
    ) -> tuple[GpuRequest, Cluster]:
        """Return *cluster* as the job sees it, and *request*, held to the GPU types there that it does not forbid.

        Raises:
            RequestError: It forbids all of them.
        """
        reach = (request.partitions, request.scopes, request.node_features)
        visible = cluster.within(*reach)
        if not names:
            return request, visible

        allowed = without_forbidden(cluster, names, self.catalogue).within(*reach)
        reached = [pool.site_type for pool in visible.pools if admits(pool, request)]
        left = [pool.site_type for pool in allowed.pools if admits(pool, request)]

        # A request without GPUs is no business of ours, and one that loses no type needs no condition.
        if left == reached or not request.gpu_count:
            return request, allowed
        if not left:
            raise no_allowed_type_error(names)
        return replace(request, required_gpus=tuple(left)), allowed

    def _through_policies(self, policy_input: PolicyInput, stages: Sequence[Stage] = STAGES) -> Decision:
        """Ask the policy of each stage in order; each one may change the draft of those before it."""
        request = policy_input.request
        draft = Decision(code=Code.KEEP, request=request, reasons=(), plugin=__name__)
        for stage in stages:
            draft = self.hooks.decide(stage, policy_input, draft) or draft
            if draft.final:
                return draft

        # Types that the job does not forbid are required from the start: they are requested even if nothing else is.
        is_changed = draft.request != request or request.required_gpus
        return replace(draft, code=Code.REWRITE if is_changed else Code.KEEP, step_times_s=step_times_s(policy_input))

    def _render(self, job: Job, decision: Decision, cluster: Cluster) -> tuple[Decision, RenderedDecision]:
        """Return *decision* in the manager's own words; it is a KEEP where these cannot express it."""
        rendered = self.hooks.render_decision(job, decision, cluster, self.context(job.submission.manager))
        if rendered is None and decision.code is not Code.REWRITE:
            rendered = RenderedDecision(before=job.request_text, after=job.request_text, fields={})
        rendered = require_answer("render_decision", rendered)

        # A required type that the manager's words cannot express must not be dropped: the whole decision goes.
        if decision.code is Code.REWRITE and not rendered.fields:
            reason = rendered.trouble or NO_WORDS
            reasons = (each.replace(EXCLUDES, "may land on ", 1) for each in decision.reasons)
            decision = replace(decision, code=Code.KEEP, request=job.request, reasons=(*reasons, reason))

        # A job that forbids GPU types reads whether it is kept off those that it could get.
        names = job.model_request.workload.forbidden_gpus if job.model_request else ()
        if not names or decision.code is Code.DECLINE:
            return decision, rendered
        try:
            request, _ = self._without_forbidden(job.request, cluster, names)
        except GpuUsageError:
            return decision, rendered  # the decision says so
        if request == job.request:
            return decision, rendered
        shown = "+".join(names)
        clause = f"{EXCLUDES}{shown}" if decision.code is Code.REWRITE else f"it may get {shown}, which it forbids"
        return replace(decision, reasons=(*decision.reasons, clause)), rendered


def make_advisor() -> Advisor:
    """Return an advisor with every installed plugin and the whole catalogue."""
    hooks = load_hooks()
    return Advisor(hooks=hooks, catalogue=Catalogue(hooks.describe_gpus()))


@cache
def advisor() -> Advisor:
    """Return the advisor of this host's site, which this process shares."""
    from gpusage.settings.configuration_file import DEFAULT_PATH, read_configuration  # not for gpusaged and sbatch

    made = make_advisor()
    is_site = Path(os.environ.get("GPUSAGE_CONFIG") or DEFAULT_PATH).exists()
    return made.configured(read_configuration()[0]) if is_site else made


def _keep_decision(job: Job, *reasons: str) -> Decision:
    return Decision(code=Code.KEEP, request=job.request, reasons=reasons, plugin=__name__)
