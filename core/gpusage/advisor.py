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
from gpusage.predictors.intervals import exactly, product
from gpusage_hooks.errors import GpuUsageError, GraphError, PluginError
from gpusage_hooks.managers import Context, ManagerSettings
from gpusage_hooks.types import (
    STAGES,
    Activity,
    Alone,
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
    MemoryInterval,
    ModelGraph,
    Place,
    Price,
    Rendered,
    Rules,
    Submission,
    Workload,
)

T = TypeVar("T")

NOTHING_KNOWN = Alone()
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

    def predict(
        self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], alone: Alone = NOTHING_KNOWN
    ) -> tuple[GpuNeed, ...]:
        """Return what *workload* needs on each of *gpus*, in their order.

        Args:
            graph: The model.
            workload: How it is run.
            gpus: Whole GPUs, and slices, each of which also has what it costs against the GPU that it is cut from.
            alone: What an earlier run alone on a whole GPU showed, which tells what a slice costs.

        Raises:
            GraphError: The model has a fixed batch size, and the workload another.
        """
        if graph.fixed_batch_size not in (None, workload.batch_size):
            message = (
                f"Model {graph.name!r} must be run at the batch size it was exported for, {graph.fixed_batch_size}; "
                f"got batch={workload.batch_size}. Export it with a dynamic batch axis."
            )
            raise GraphError(message)
        from gpusage.predictors.needs import doubts  # noqa: PLC0415 - numpy is not for every command

        answers = zip(
            gpus,
            _answered("predict_step_time", self.hooks.predict_step_time(graph, workload, gpus)),
            _answered("predict_memory", self.hooks.predict_memory(graph, workload, gpus)),
            _answered("predict_activity", self.hooks.predict_activity(graph, workload, gpus)),
            doubts(graph, workload, gpus),
            strict=True,
        )
        needs = tuple(_need(graph, workload, *answer) for answer in answers)
        slices = [gpu for gpu in gpus if gpu.cut_from]
        if not slices:
            return needs
        boards, parts = [self.catalogue.find(gpu.board) for gpu in slices], [[gpu] for gpu in slices]
        answer = self.hooks.predict_slowdown(graph, workload, boards, parts, alone)
        costs = {gpu.name: cost for gpu, (cost,) in zip(slices, _answered("predict_slowdown", answer), strict=True)}
        return tuple(replace(need, slowdown=costs.get(need.gpu, need.slowdown)) for need in needs)

    def price(
        self,
        graph: ModelGraph,
        workload: Workload,
        gpus: Sequence[Gpu],
        percents: Sequence[int],
        alone: Alone = NOTHING_KNOWN,
    ) -> tuple[tuple[Price, ...], ...]:
        """Return what each share of each of *gpus* costs *workload*, in their order: all are priced at once.

        Args:
            graph: The model.
            workload: How it is run.
            gpus: Whole GPUs.
            percents: Shares, each 1 to 100.
            alone: What an earlier run alone on a whole GPU showed.

        Raises:
            DeviceError: A share is not from 1 to 100 percent.
        """
        parts = [shares_of(gpu, percents) for gpu in gpus]
        answer = self.hooks.predict_slowdown(graph, workload, gpus, parts, alone)
        rows = zip(gpus, _answered("predict_slowdown", answer), strict=True)
        return tuple(
            tuple(
                Price(gpu=gpu.name, share_percent=percent, slowdown=slowdown)
                for percent, slowdown in zip(percents, slowdowns, strict=True)
            )
            for gpu, slowdowns in rows
        )

    def predict_shares(
        self,
        graph: ModelGraph,
        workload: Workload,
        gpus: Sequence[Gpu],
        percents: Sequence[int],
        alone: Alone = NOTHING_KNOWN,
    ) -> tuple[GpuNeed, ...]:
        """Return what *workload* needs on each share of the first of *gpus*, then of the next, with what it costs.

        Arguments and errors are those of `price`.
        """
        pairs = [(gpu, part) for gpu in gpus for part in shares_of(gpu, percents)]
        asked = list({id(gpu): gpu for gpu in (*gpus, *(part for _, part in pairs))}.values())
        needs = dict(zip(map(id, asked), self.predict(graph, workload, asked, alone), strict=True))
        prices = chain.from_iterable(self.price(graph, workload, gpus, percents, alone))
        return tuple(
            _on_share(needs[id(part)], workload, gpu, price, _alone_s(needs[id(gpu)], alone))
            for (gpu, part), price in zip(pairs, prices, strict=True)
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
        asked = job.request
        reachable = cluster.within(asked.partitions, asked.scopes, asked.node_features)
        try:
            case = self._case(asked, graph, wish.workload, reachable)
        except PluginError:
            raise  # not for the user to mend
        except GpuUsageError as error:
            return _kept(job, str(error))
        return self._through_policies(case)

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
        pools = [pool for pool in cluster.pools if pool.gpu is not None]
        gpus = tuple(self.catalogue.find(pool.gpu or "") for pool in pools)
        rows = zip(pools, gpus, self.predict(graph, workload, gpus), strict=True)
        places = tuple(Place(pool=pool, gpu=gpu, need=need) for pool, gpu, need in rows)
        if may_share(request, workload, cluster, self.rules.sharing):
            prices = self.price(graph, workload, gpus, sizes(self.rules.sharing), self._known(workload.alone))
            places = tuple(replace(place, shares=shares) for place, shares in zip(places, prices, strict=True))
        return Case(request=request, workload=workload, places=places, cluster=cluster, rules=self.rules)

    def _known(self, alone: Alone) -> Alone:
        """Return what the user knows, the GPU that the step time is of by its name of the catalogue."""
        return alone if alone.gpu is None else replace(alone, gpu=self.catalogue.find(alone.gpu).name)


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


def _need(  # noqa: PLR0913, PLR0917 - one answer of each predictor
    graph: ModelGraph,
    workload: Workload,
    gpu: Gpu,
    step_time_s: Interval,
    memory_bytes: Interval,
    activity: Activity,
    doubts_of_it: tuple[str, ...],
) -> GpuNeed:
    return GpuNeed(
        gpu=gpu.name,
        step_time_s=step_time_s,
        memory_bytes=Interval(value=memory_bytes.value, low=memory_bytes.low, high=memory_bytes.high),
        share_high_bytes=memory_bytes.share_high if isinstance(memory_bytes, MemoryInterval) else None,
        gpu_utilization=activity.gpu_utilization,
        sm_activity=activity.sm_activity,
        dram_activity=activity.dram_activity,
        throughput_samples_per_s=_throughput(workload, step_time_s),
        fits=memory_bytes.high <= gpu.memory_bytes,
        familiar=not doubts_of_it,
        notes=(*graph.notes, *doubts_of_it),
        parameter_count=graph.parameter_count,
    )


def _on_share(need: GpuNeed, workload: Workload, gpu: Gpu, price: Price, alone_s: Interval) -> GpuNeed:
    step_time_s = product(alone_s, price.slowdown)
    booked_bytes = need.memory_bytes.high if price.share_percent == WHOLE_PERCENT else need.share_memory_bytes
    return replace(
        need,
        step_time_s=step_time_s,
        throughput_samples_per_s=_throughput(workload, step_time_s),
        fits=booked_bytes <= gpu.memory_bytes * price.share_percent / WHOLE_PERCENT,
        share_percent=price.share_percent,
        slowdown=need.slowdown if price.share_percent == WHOLE_PERCENT else price.slowdown,
    )


def _alone_s(whole: GpuNeed, alone: Alone) -> Interval:
    """Return the seconds of one step on the whole GPU: as it was measured there, else as predicted."""
    if alone.step_time_s is None or alone.gpu not in {None, whole.gpu}:
        return whole.step_time_s
    return exactly(alone.step_time_s)


def _throughput(workload: Workload, step_time_s: Interval) -> Interval:
    """Return samples a second."""
    return Interval(
        value=workload.batch_size / step_time_s.value,
        low=workload.batch_size / step_time_s.high,
        high=workload.batch_size / step_time_s.low,
    )


def _kept(job: Job, *reasons: str) -> Decision:
    return Decision(code=Code.KEEP, request=job.request, reasons=reasons, plugin=__name__)
