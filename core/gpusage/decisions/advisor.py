"""Read, decide, render: the path from a job to its decision, by predictions.

The advisor is the same for the command line, the daemon and the Python API. It asks plugins and puts their answers
together; it knows no workload manager and does no I/O of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from gpusage.decisions.prediction import Predictor, require_answer
from gpusage.devices.catalogue import Catalogue
from gpusage.experience.unnamed_jobs import BY_HISTORY, NO_GRAPH, estimates_by_gpu, reasons_of
from gpusage.experience.unnamed_jobs import policy_input as input_by_history
from gpusage.graphs.reader import folder_rejection
from gpusage.plugins.loading import load_hooks
from gpusage.policies.candidates import admits, no_allowed_type_error, step_times_s, without_forbidden
from gpusage.policies.share_price import priced_percents
from gpusage.policies.sharing import SharePrice, may_share, price_list
from gpusage.store.annotation import EXCLUDES
from gpusage_hooks.comment import MODEL_NAMES
from gpusage_hooks.errors import GpuUsageError, GraphError, PluginError
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
    ModelGraph,
    ObservedFigures,
    PolicyInput,
    Price,
    RenderedDecision,
    Rules,
    Stage,
    Submitter,
    Workload,
)

if TYPE_CHECKING:
    from gpusage.settings.configuration import Configuration

SHOWS_MODEL = "learn=on: this run shows the model"
NO_CARD = "no description of the model came with the job"
NO_WORDS = "this cluster cannot express it: its GPUs have different numbers of MPS units, or no features"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisor(Predictor):
    """Decides what a job should request, by what its model needs.

    Attributes:
        rules: The site's, for policies.
        settings: Of each workload manager, by its name.
    """

    rules: Rules = Rules()
    settings: Mapping[str, ManagerSettings] = field(default_factory=dict)

    def configured(self, configuration: Configuration) -> Advisor:
        """Return the advisor of a site: with its rules, and its settings of workload managers."""
        catalogue = self.catalogue.with_networks(configuration.network.gbit_per_s)
        return replace(self, rules=configuration.rules, settings=configuration.managers, catalogue=catalogue)

    def for_submitter(self, submitter: Submitter) -> Advisor:
        """Return the advisor of a job of *submitter*."""
        return replace(self, submitter=submitter)

    def context(self, manager: str) -> Context:
        """Return what the hooks of the workload manager *manager* are given."""
        settings = self.settings.get(manager, ManagerSettings())
        return Context(settings=settings, catalogue=self.catalogue, model_names=self.model_names)

    @property
    def model_names(self) -> tuple[str, ...]:
        """How models are named: those that gpusage reads itself, and those of plugins."""
        return (*MODEL_NAMES, *self.hooks.describe_model_names())

    def read(self, source: str, shape: Mapping[str, Sequence[int]] | None = None) -> ModelGraph:
        """Return the graph of the model at *source*.

        Raises:
            GraphError: No reader knows the format, or the one that does cannot read it.
        """
        graph = self.hooks.read_model(source, shape or {})
        if graph is None:
            message = folder_rejection(source) or (
                f"Model {source!r} must be an ONNX file, a .pt2 program, a Hugging Face folder, a saved card, "
                "or a name such as 'timm:resnet50'; got none of these. Check the path."
            )
            raise GraphError(message)
        return graph

    def understand(self, submission: DecisionRequest) -> Job | None:
        """Return *submission* as its manager's plugin parses it; ``None`` if there is no such plugin.

        Raises:
            RequestError: The user's words to us are malformed.
        """
        return self.hooks.parse_submission(submission, self.context(submission.manager))

    def decide(self, job: Job, graph: ModelGraph | None, cluster: Cluster) -> Decision:
        """Return the decision on *job*; an expected refusal is a decision, not an error.

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
        try:
            policy_input = self._case(self._settled(job.request, cluster), graph, model_request.workload, cluster)
            doubt = self.implausible_step_time(graph, model_request.workload)
        except PluginError:
            raise  # not for the user to mend
        except GpuUsageError as error:
            return _keep_decision(job, str(error))
        decision = self._with_what_was_learned(self._through_policies(policy_input), graph, model_request.workload)
        return replace(decision, reasons=(*decision.reasons, doubt)) if doubt else decision

    def decide_by_history(self, job: Job, cluster: Cluster) -> tuple[Decision, Mapping[str, ObservedFigures]]:
        """Return the decision on *job*, which names no model, and its estimates by the name of each GPU.

        Raises:
            PluginError: A plugin breaks the contract.
        """
        job = replace(job, request=self._settled(job.request, cluster))
        request = job.request
        cluster = cluster.within(request.partitions, request.scopes, request.node_features)
        gpus = {pool.gpu: self.catalogue.find(pool.gpu) for pool in cluster.pools if pool.gpu is not None}
        rows = [*gpus.values()]
        answers = self.hooks.find_observed_figures(NO_GRAPH, Workload(), rows, self.submitter)
        estimates = estimates_by_gpu(job, rows, answers, self.learned.history, self.catalogue.find)
        policy_input = input_by_history(job, cluster, gpus, estimates, self.rules)
        if policy_input is None:
            return _keep_decision(job, *reasons_of(estimates), *request.obstacles), estimates
        decision = self._through_policies(policy_input, BY_HISTORY)
        return replace(decision, reasons=(*reasons_of(estimates), *decision.reasons), step_times_s={}), estimates

    def share_prices(self, job: Job, graph: ModelGraph, cluster: Cluster, decision: Decision) -> tuple[SharePrice, ...]:
        """Return what each share would cost *job*, and why *decision* takes it or does not; none where it cannot share.

        Raises:
            GpuUsageError: Nothing can be predicted for it.
        """
        workload = job.model_request.workload if job.model_request else Workload()
        return price_list(self._case(self._settled(job.request, cluster), graph, workload, cluster), decision)

    def render(self, job: Job, decision: Decision, cluster: Cluster) -> tuple[Decision, RenderedDecision]:
        """Return *decision* in the manager's own words; it is a KEEP where these cannot express it.

        Raises:
            PluginError: No adapter answers for the manager of a job that is to be rewritten.
        """
        rendered = self.hooks.render_decision(job, decision, cluster, self.context(job.submission.manager))
        if rendered is None and decision.code is not Code.REWRITE:
            rendered = RenderedDecision(before=job.request_text, after=job.request_text, fields={})
        rendered = require_answer("render_decision", rendered)
        if decision.code is Code.REWRITE and not rendered.fields:
            reason = rendered.trouble or NO_WORDS
            decision = replace(decision, code=Code.KEEP, request=job.request, reasons=(*decision.reasons, reason))
        clause = self._forbidden_clause(job, decision, cluster)
        return (replace(decision, reasons=(*decision.reasons, clause)) if clause else decision), rendered

    def _forbidden_clause(self, job: Job, decision: Decision, cluster: Cluster) -> str:
        """Return whether *job* is kept off the GPU types that it forbids, where it could get one of them."""
        names = job.model_request.workload.forbidden_gpus if job.model_request else ()
        if not names or decision.code is Code.DECLINE:
            return ""
        try:
            request, _ = self._without_forbidden(job.request, cluster, names)
        except GpuUsageError:
            return ""  # the decision says so
        if request == job.request:
            return ""
        shown = "+".join(names)
        return f"{EXCLUDES}{shown}" if decision.code is Code.REWRITE else f"it may get {shown}, which it forbids"

    def _settled(self, request: GpuRequest, cluster: Cluster) -> GpuRequest:
        """Return *request* as the site and its cluster allow it: it runs again only where both allow that."""
        return request if self.rules.sharing.rescue and cluster.repeats else replace(request, repeatable=False)

    def _without_forbidden(
        self, request: GpuRequest, cluster: Cluster, names: Sequence[str]
    ) -> tuple[GpuRequest, Cluster]:
        """Return *cluster* as the job sees it, and *request*, held to the GPU types there that it does not forbid.

        Raises:
            RequestError: It forbids all of them.
        """
        visible = cluster.within(request.partitions, request.scopes, request.node_features)
        allowed = without_forbidden(cluster, names, self.catalogue).within(
            request.partitions, request.scopes, request.node_features
        )
        reached = [pool.site_type for pool in visible.pools if admits(pool, request)]
        left = [pool.site_type for pool in allowed.pools if admits(pool, request)]
        if left == reached or not request.gpu_count:
            return request, allowed
        if not left:
            raise no_allowed_type_error(names)
        return replace(request, required_gpus=tuple(left)), allowed

    def _through_policies(self, policy_input: PolicyInput, stages: Sequence[Stage] = STAGES) -> Decision:
        """Ask the policy of each stage in order; each one may change the draft of those before it."""
        draft = Decision(code=Code.KEEP, request=policy_input.request, reasons=(), plugin=__name__)
        for stage in stages:
            draft = self.hooks.decide(stage, policy_input, draft) or draft
            if draft.final:
                return draft
        # Types that the job does not forbid are required from the start: they are asked for even if nothing else is.
        is_changed = draft.request != policy_input.request or policy_input.request.required_gpus
        code = Code.REWRITE if is_changed else Code.KEEP
        return replace(draft, code=code, step_times_s=step_times_s(policy_input))

    def _with_what_was_learned(self, decision: Decision, graph: ModelGraph, workload: Workload) -> Decision:
        """Return *decision* with a reason that says what earlier runs showed, where it rests on that."""
        clause = self.find(graph, workload).describe(decision.need.gpu if decision.need else "")
        user_utilization, batch_size = workload.alone.utilization, workload.alone.batch_size
        if clause and user_utilization is not None and self.without_contradicted_values(graph, workload) != workload:
            at = f" for batch {batch_size}" if batch_size else ""
            clause += f", not {100 * user_utilization:.0f} % as you gave{at}"
        return replace(decision, reasons=(*decision.reasons, clause)) if clause else decision

    def _case(self, request: GpuRequest, graph: ModelGraph, workload: Workload, cluster: Cluster) -> PolicyInput:
        workload = self.without_contradicted_values(graph, _on_requested_gpus(request, workload))
        request, cluster = self._without_forbidden(request, cluster, workload.forbidden_gpus)
        pools = [pool for pool in cluster.pools if pool.gpu is not None]
        gpus = tuple(self.catalogue.find(pool.gpu or "") for pool in pools)
        known = self.observed_figures(graph, workload, gpus)
        needs = self._needs(graph, workload, gpus, known)
        shares: Sequence[tuple[Price, ...]] = [()] * len(gpus)
        if may_share(request, workload, cluster, self.rules.sharing):
            shares = self._prices(graph, workload, gpus, priced_percents(self.rules.sharing), known)
        candidates = tuple(
            Candidate(pool=pool, gpu=gpu, need=need, shares=prices, known=figures)
            for pool, gpu, need, prices, figures in zip(pools, gpus, needs, shares, known, strict=True)
        )
        return PolicyInput(request=request, workload=workload, candidates=candidates, cluster=cluster, rules=self.rules)


def make_advisor() -> Advisor:
    """Return an advisor with every installed plugin and the whole catalogue."""
    hooks = load_hooks()
    return Advisor(hooks=hooks, catalogue=Catalogue(hooks.describe_gpus()))


@cache
def advisor() -> Advisor:
    """Return the advisor with everything that is installed, which this process shares."""
    return make_advisor()


def _on_requested_gpus(request: GpuRequest, workload: Workload) -> Workload:
    """Return *workload* on all the GPUs that *request* has; training that does not say how is data parallel."""
    several = request.gpu_count > 1 and workload.gpus == 1 and workload.mode == "train"
    return replace(workload, gpus=request.gpu_count) if several else workload


def _keep_decision(job: Job, *reasons: str) -> Decision:
    return Decision(code=Code.KEEP, request=job.request, reasons=reasons, plugin=__name__)
