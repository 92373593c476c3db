"""Read, predict, decide: the whole story, on one screen.

The advisor is the same for the command line, the daemon and the Python API. It asks plugins and puts their answers
together; it knows no workload manager and does no I/O of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

from gpusage.configuration import Configuration
from gpusage.devices.catalogue import Catalogue
from gpusage.devices.shares import WHOLE_PERCENT, shares_of
from gpusage.plugins.hooks import Hooks
from gpusage.plugins.loading import load_hooks
from gpusage.policies.by_price import may_share
from gpusage.policies.price import sizes
from gpusage.policies.price_list import SharePrice, price_list
from gpusage.predictors.intervals import product
from gpusage.predictors.known import NOTHING_KNOWN, first_known, throughput
from gpusage_hooks.errors import GpuUsageError, GraphError, PluginError
from gpusage_hooks.managers import Context, ManagerSettings
from gpusage_hooks.types import (
    STAGES,
    Case,
    Cluster,
    Code,
    Colocation,
    Decision,
    Gpu,
    GpuNeed,
    GpuRequest,
    Interval,
    Job,
    Known,
    ModelGraph,
    Place,
    Price,
    Rendered,
    Rules,
    Submission,
    Workload,
)

T = TypeVar("T")

NO_CARD = "no description of the model came with the job"
NO_WORDS = "this cluster has no words for it: its GPUs count different MPS units, or have no features"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisor:
    """Answers what a model needs and what a job should ask for.

    Attributes:
        hooks: By which every plugin is asked.
        settings: Of each workload manager, by its name.
    """

    hooks: Hooks
    catalogue: Catalogue
    rules: Rules = Rules()
    settings: Mapping[str, ManagerSettings] = field(default_factory=dict)

    def configured(self, configuration: Configuration) -> Advisor:
        """Return the advisor of a site: with its rules, and its settings of workload managers."""
        return replace(self, rules=configuration.rules, settings=configuration.managers)

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
            message = (
                f"Model {source!r} must be an ONNX file, a .pt2 program, a Hugging Face folder, a saved card, "
                "or a name such as 'timm:resnet50'; got none of these. Check the path."
            )
            raise GraphError(message)
        return graph

    def predict(self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> tuple[GpuNeed, ...]:
        """Return what *workload* needs on each of *gpus*, in their order.

        Args:
            graph: The model.
            workload: How it is run, and what its user knows of a run alone on a whole GPU.
            gpus: Whole GPUs, and slices, each of which also has what it costs against the GPU that it is cut from.

        Raises:
            GraphError: The model has a fixed batch size, and the workload another.
            DeviceError: The user's step time is of a GPU that the catalogue does not have.
        """
        return self._needs(graph, workload, gpus, self.known(graph, workload, gpus))

    def known(self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> tuple[Known, ...]:
        """Return what plugins, or its user, know of *workload* alone on each of *gpus*, whole ones.

        Raises:
            DeviceError: The user's step time is of a GPU that the catalogue does not have.
        """
        return first_known(self.hooks.known_figures(graph, self._named(workload), gpus), gpus)

    def _needs(
        self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], known: Sequence[Known]
    ) -> tuple[GpuNeed, ...]:
        if graph.fixed_batch_size not in (None, workload.batch_size):
            message = (
                f"Model {graph.name!r} must be run at the batch size it was exported for, {graph.fixed_batch_size}; "
                f"got batch={workload.batch_size}. Export it with a dynamic batch axis."
            )
            raise GraphError(message)
        needs = tuple(_answered("predict_needs", self.hooks.predict_needs(graph, workload, gpus, known)))
        slices = [gpu for gpu in gpus if gpu.cut_from]
        return self._with_slowdowns(graph, workload, needs, slices) if slices else needs

    def _with_slowdowns(
        self, graph: ModelGraph, workload: Workload, needs: Sequence[GpuNeed], slices: Sequence[Gpu]
    ) -> tuple[GpuNeed, ...]:
        """Return *needs*, those of *slices* with what these cost against the GPUs that they are cut from."""
        boards, parts = [self.catalogue.find(gpu.board) for gpu in slices], [[gpu] for gpu in slices]
        known = self.known(graph, workload, boards)
        answer = _answered("predict_slowdown", self.hooks.predict_slowdown(graph, workload, boards, parts, known))
        costs = {gpu.name: cost for gpu, (cost,) in zip(slices, answer, strict=True)}
        return tuple(replace(need, slowdown=costs.get(need.gpu, need.slowdown)) for need in needs)

    def price(
        self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], percents: Sequence[int]
    ) -> tuple[tuple[Price, ...], ...]:
        """Return what each share of each of *gpus* costs *workload*, in their order: all are priced at once.

        Args:
            graph: The model.
            workload: How it is run, and what its user knows of a run alone on a whole GPU.
            gpus: Whole GPUs.
            percents: Shares, each 1 to 100.

        Raises:
            DeviceError: A share is not from 1 to 100 percent.
        """
        return self._prices(graph, workload, gpus, percents, self.known(graph, workload, gpus))

    def predict_shares(
        self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], percents: Sequence[int]
    ) -> tuple[GpuNeed, ...]:
        """Return what *workload* needs on each share of the first of *gpus*, then of the next, with what it costs.

        Arguments and errors are those of `price`.
        """
        pairs = [(gpu, part) for gpu in gpus for part in shares_of(gpu, percents)]
        known = dict(zip(map(id, gpus), self.known(graph, workload, gpus), strict=True))
        asked = list({id(gpu): gpu for gpu in (*gpus, *(part for _, part in pairs))}.values())
        of_each = [known.get(id(gpu), NOTHING_KNOWN) for gpu in asked]
        needs = dict(zip(map(id, asked), self._needs(graph, workload, asked, of_each), strict=True))
        prices = self._prices(graph, workload, gpus, percents, [known[id(gpu)] for gpu in gpus])
        return tuple(
            _on_share(needs[id(part)], workload, gpu, price, needs[id(gpu)].step_time_s)
            for (gpu, part), price in zip(pairs, chain.from_iterable(prices), strict=True)
        )

    def _prices(
        self,
        graph: ModelGraph,
        workload: Workload,
        gpus: Sequence[Gpu],
        percents: Sequence[int],
        known: Sequence[Known],
    ) -> tuple[tuple[Price, ...], ...]:
        parts = [shares_of(gpu, percents) for gpu in gpus]
        answer = self.hooks.predict_slowdown(graph, workload, gpus, parts, known)
        rows = zip(gpus, _answered("predict_slowdown", answer), strict=True)
        return tuple(
            tuple(
                Price(gpu=gpu.name, share_percent=percent, slowdown=slowdown)
                for percent, slowdown in zip(percents, slowdowns, strict=True)
            )
            for gpu, slowdowns in rows
        )

    def colocate(self, needs: Sequence[GpuNeed], gpu: Gpu) -> Colocation:
        """Return what jobs, each given by its need on *gpu*, do to each other there."""
        return _answered("predict_colocation", self.hooks.predict_colocation(needs, gpu))

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
        except PluginError:
            raise  # not for the user to mend
        except GpuUsageError as error:
            return _kept(job, str(error))
        return self._through_policies(case)

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
        rendered = _answered("render_decision", rendered)
        if decision.code is Code.REWRITE and not rendered.fields:
            reason = rendered.trouble or NO_WORDS
            decision = replace(decision, code=Code.KEEP, request=job.request, reasons=(*decision.reasons, reason))
        return decision, rendered

    def _through_policies(self, case: Case) -> Decision:
        """Ask each policy in its turn; each answers on the draft of those before it."""
        draft = Decision(code=Code.KEEP, request=case.request, reasons=(), plugin=__name__)
        for stage in STAGES:
            draft = self.hooks.decide(stage, case, draft) or draft
            if draft.final:
                return draft
        changed = draft.request != case.request
        return replace(draft, code=Code.REWRITE if changed else Code.KEEP)

    def _case(self, request: GpuRequest, graph: ModelGraph, workload: Workload, cluster: Cluster) -> Case:
        cluster = cluster.within(request.partitions, request.scopes, request.node_features)
        pools = [pool for pool in cluster.pools if pool.gpu is not None]
        gpus = tuple(self.catalogue.find(pool.gpu or "") for pool in pools)
        rows = zip(pools, gpus, self.predict(graph, workload, gpus), strict=True)
        places = tuple(Place(pool=pool, gpu=gpu, need=need) for pool, gpu, need in rows)
        if may_share(request, workload, cluster, self.rules.sharing):
            prices = self.price(graph, workload, gpus, sizes(self.rules.sharing))
            places = tuple(replace(place, shares=shares) for place, shares in zip(places, prices, strict=True))
        return Case(request=request, workload=workload, places=places, cluster=cluster, rules=self.rules)

    def _named(self, workload: Workload) -> Workload:
        """Return *workload*, the GPU that its user's step time is of by its name of the catalogue."""
        alone = workload.alone
        if alone.gpu is None:
            return workload
        return replace(workload, alone=replace(alone, gpu=self.catalogue.find(alone.gpu).name))


def make_advisor() -> Advisor:
    """Return an advisor with every installed plugin and the whole catalogue."""
    hooks = load_hooks()
    return Advisor(hooks=hooks, catalogue=Catalogue(hooks.describe_gpus()))


def _answered(hook: str, answer: T | None) -> T:
    """Return *answer*, which somebody must give."""
    if answer is None:
        message = f"Hook {hook!r} must be answered by a plugin; got no answer. 'gpusage plugins' lists them."
        raise PluginError(message, plugin="none", hook=hook)
    return answer


def _on_share(need: GpuNeed, workload: Workload, gpu: Gpu, price: Price, alone_s: Interval) -> GpuNeed:
    step_time_s = product(alone_s, price.slowdown)
    booked_bytes = need.memory_bytes.high if price.share_percent == WHOLE_PERCENT else need.share_memory_bytes
    return replace(
        need,
        step_time_s=step_time_s,
        throughput_samples_per_s=throughput(workload, step_time_s),
        fits=booked_bytes <= gpu.memory_bytes * price.share_percent / WHOLE_PERCENT,
        share_percent=price.share_percent,
        slowdown=need.slowdown if price.share_percent == WHOLE_PERCENT else price.slowdown,
    )


def _kept(job: Job, *reasons: str) -> Decision:
    return Decision(code=Code.KEEP, request=job.request, reasons=reasons, plugin=__name__)
