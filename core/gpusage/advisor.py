"""Read, decide, render: the whole story of a job, on top of what is predicted for it.

The advisor is the same for the command line, the daemon and the Python API. It asks plugins and puts their answers
together; it knows no workload manager and does no I/O of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpusage.configuration import Configuration
from gpusage.devices.catalogue import Catalogue
from gpusage.graphs.folders import folder_refusal
from gpusage.history.deciding import BY_HISTORY, NO_GRAPH, case_of, told_of
from gpusage.history.deciding import said as said_of
from gpusage.learning.words import said
from gpusage.plugins.loading import load_hooks
from gpusage.policies.place import step_times_s
from gpusage.policies.shares.by_price import may_share
from gpusage.policies.shares.price import priced_percents
from gpusage.policies.shares.price_list import SharePrice, price_list
from gpusage.prediction import Predictor, answered
from gpusage_hooks.errors import GpuUsageError, GraphError, PluginError
from gpusage_hooks.managers import Context, ManagerSettings
from gpusage_hooks.types import (
    STAGES,
    Alone,
    Case,
    Cluster,
    Code,
    Decision,
    GpuRequest,
    Job,
    Known,
    ModelGraph,
    Place,
    Rendered,
    Rules,
    Stage,
    Submission,
    Submitter,
    Workload,
)

NO_CARD = "no description of the model came with the job"
NO_WORDS = "this cluster has no words for it: its GPUs count different MPS units, or have no features"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisor(Predictor):
    """Answers what a job should ask for, by what its model needs.

    Attributes:
        rules: The site's, for policies.
        settings: Of each workload manager, by its name.
    """

    rules: Rules = Rules()
    settings: Mapping[str, ManagerSettings] = field(default_factory=dict)

    def configured(self, configuration: Configuration) -> Advisor:
        """Return the advisor of a site: with its rules, and its settings of workload managers."""
        return replace(self, rules=configuration.rules, settings=configuration.managers)

    def asked_by(self, submitter: Submitter) -> Advisor:
        """Return the advisor of a job of *submitter*."""
        return replace(self, submitter=submitter)

    def context(self, manager: str) -> Context:
        """Return what the hooks of the workload manager *manager* are given."""
        return Context(settings=self.settings.get(manager, ManagerSettings()), catalogue=self.catalogue)

    def read(self, source: str, shape: Mapping[str, Sequence[int]] | None = None) -> ModelGraph:
        """Return the graph of the model at *source*.

        Raises:
            GraphError: No reader knows the format, or the one that does cannot read it.
        """
        graph = self.hooks.read_model(source, shape or {})
        if graph is None:
            message = folder_refusal(source) or (
                f"Model {source!r} must be an ONNX file, a .pt2 program, a Hugging Face folder, a saved card, "
                "or a name such as 'timm:resnet50'; got none of these. Check the path."
            )
            raise GraphError(message)
        return graph

    def understand(self, submission: Submission) -> Job | None:
        """Return what a plugin understands of *submission*; ``None`` where none is for its manager.

        Raises:
            RequestError: The user's words to us are malformed.
        """
        return self.hooks.parse_submission(submission, self.context(submission.manager))

    def decide(self, job: Job, graph: ModelGraph | None, cluster: Cluster) -> Decision:
        """Return what is to become of *job*; an expected refusal is a decision, not an error.

        Raises:
            PluginError: A plugin breaks the contract.
        """
        wish = job.model_request
        if wish is None or not wish.enabled:
            reason = "the job says nothing to gpusage" if wish is None else "the job opted out with gpusage=off"
            return Decision(code=Code.DECLINE, request=job.request, reasons=(reason,), plugin=__name__)
        if graph is None:
            troubles = (job.card_trouble,) if job.card_trouble else ()
            return _kept(job, *((*job.request.obstacles, *troubles) or (NO_CARD,)))
        try:
            case = self._case(job.request, graph, wish.workload, cluster)
            doubt = self.disbelief(graph, wish.workload)
        except PluginError:
            raise  # not for the user to mend
        except GpuUsageError as error:
            return _kept(job, str(error))
        decision = self._with_what_was_learned(self._through_policies(case), graph, wish.workload)
        return replace(decision, reasons=(*decision.reasons, doubt)) if doubt else decision

    def decide_by_history(self, job: Job, cluster: Cluster) -> tuple[Decision, Mapping[str, Known]]:
        """Return what is to become of *job*, which names no model, and what is told of it on each GPU, by its name.

        Raises:
            PluginError: A plugin breaks the contract.
        """
        request = job.request
        cluster = cluster.within(request.partitions, request.scopes, request.node_features)
        gpus = {pool.gpu: self.catalogue.find(pool.gpu) for pool in cluster.pools if pool.gpu is not None}
        rows = [*gpus.values()]
        answers = self.hooks.known_figures(NO_GRAPH, Workload(), rows, self.submitter)
        told = told_of(job, rows, answers, self.learned.history, self.catalogue.find)
        case = case_of(job, cluster, gpus, told, self.rules)
        if case is None:
            return _kept(job, *said_of(told), *request.obstacles), told
        decision = self._through_policies(case, BY_HISTORY)
        return replace(decision, reasons=(*said_of(told), *decision.reasons), step_times_s={}), told

    def share_prices(self, job: Job, graph: ModelGraph, cluster: Cluster, decision: Decision) -> tuple[SharePrice, ...]:
        """Return what each share would cost *job*, and why *decision* takes it or does not; none where it cannot share.

        Raises:
            GpuUsageError: Nothing can be predicted for it.
        """
        workload = job.model_request.workload if job.model_request else Workload()
        return price_list(self._case(job.request, graph, workload, cluster), decision)

    def render(self, job: Job, decision: Decision, cluster: Cluster) -> tuple[Decision, Rendered]:
        """Return *decision* in the manager's own words; it is a KEEP where these cannot express it.

        Raises:
            PluginError: No adapter answers for the manager of a job that is to be rewritten.
        """
        rendered = self.hooks.render_decision(job, decision, cluster, self.context(job.submission.manager))
        if rendered is None and decision.code is not Code.REWRITE:
            rendered = Rendered(before=job.request_text, after=job.request_text, fields={})
        rendered = answered("render_decision", rendered)
        if decision.code is Code.REWRITE and not rendered.fields:
            reason = rendered.trouble or NO_WORDS
            decision = replace(decision, code=Code.KEEP, request=job.request, reasons=(*decision.reasons, reason))
        return decision, rendered

    def _through_policies(self, case: Case, stages: Sequence[Stage] = STAGES) -> Decision:
        """Ask each policy in its turn; each answers on the draft of those before it."""
        draft = Decision(code=Code.KEEP, request=case.request, reasons=(), plugin=__name__)
        for stage in stages:
            draft = self.hooks.decide(stage, case, draft) or draft
            if draft.final:
                return draft
        code = Code.REWRITE if draft.request != case.request else Code.KEEP
        return replace(draft, code=code, step_times_s=step_times_s(case))

    def _with_what_was_learned(self, decision: Decision, graph: ModelGraph, workload: Workload) -> Decision:
        """Return *decision* with a reason that tells what earlier runs showed, where it rests on that."""
        clause = said(self.find(graph, workload), decision.need.gpu if decision.need else "")
        told, batch_size = workload.alone.utilization, workload.alone.batch_size
        if clause and told is not None and self.believed(graph, workload) != workload:
            at = f" for batch {batch_size}" if batch_size else ""
            clause += f", not {100 * told:.0f} % as you gave{at}"
        return replace(decision, reasons=(*decision.reasons, clause)) if clause else decision

    def _case(self, request: GpuRequest, graph: ModelGraph, workload: Workload, cluster: Cluster) -> Case:
        workload = self.believed(graph, _together(request, workload))
        cluster = cluster.within(request.partitions, request.scopes, request.node_features)
        pools = [pool for pool in cluster.pools if pool.gpu is not None]
        gpus = tuple(self.catalogue.find(pool.gpu or "") for pool in pools)
        rows = zip(pools, gpus, self.predict(graph, workload, gpus), strict=True)
        places = tuple(Place(pool=pool, gpu=gpu, need=need) for pool, gpu, need in rows)
        if self.rules.sharing.rule == "utilization" or workload.alone != Alone():
            known = self.known(graph, workload, gpus)
            places = tuple(replace(place, known=there) for place, there in zip(places, known, strict=True))
        if may_share(request, workload, cluster, self.rules.sharing):
            prices = self.price(graph, workload, gpus, priced_percents(self.rules.sharing))
            places = tuple(replace(place, shares=shares) for place, shares in zip(places, prices, strict=True))
        return Case(request=request, workload=workload, places=places, cluster=cluster, rules=self.rules)


def make_advisor() -> Advisor:
    """Return an advisor with every installed plugin and the whole catalogue."""
    hooks = load_hooks()
    return Advisor(hooks=hooks, catalogue=Catalogue(hooks.describe_gpus()))


def _together(request: GpuRequest, workload: Workload) -> Workload:
    """Return *workload* on all the GPUs that *request* has; training that does not say how is data parallel."""
    several = request.gpu_count > 1 and workload.gpus == 1 and workload.mode == "train"
    return replace(workload, gpus=request.gpu_count) if several else workload


def _kept(job: Job, *reasons: str) -> Decision:
    return Decision(code=Code.KEEP, request=job.request, reasons=reasons, plugin=__name__)
