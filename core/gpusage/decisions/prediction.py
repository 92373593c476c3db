"""What a workload needs on GPUs, and what shares of them cost: the predictions of all plugins, merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from gpusage.devices.catalogue import Catalogue
from gpusage.devices.shares import memory_cap_bytes, shares_alone_of, shares_of
from gpusage.experience.learned import NO_FINDING, NOTHING_LEARNED, Finding, Learned
from gpusage.graphs.model_files import DYNAMIC_BATCH
from gpusage.plugins.hooks import NOBODY, Hooks
from gpusage.predictors.intervals import product
from gpusage.predictors.known import (
    NO_EARLIER_RUN,
    NOTHING_KNOWN,
    figures_from_longer_step,
    first_known,
    implausible_step_time,
    is_same_batch_size,
    share_notes,
    throughput,
)
from gpusage_hooks.errors import GraphError, PluginError
from gpusage_hooks.types import (
    Colocation,
    Gpu,
    GpuNeed,
    Interval,
    ModelGraph,
    ObservedFigures,
    Price,
    Submitter,
    Workload,
)
from gpusage_hooks.units import WHOLE_PERCENT, gib

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """Predicts what a workload needs.

    Attributes:
        hooks: By which every plugin is asked.
        catalogue: The GPUs that gpusage knows.
        learned: What this site's jobs showed.
        submitter: Of the job that is asked about.
    """

    hooks: Hooks
    catalogue: Catalogue
    learned: Learned = NOTHING_LEARNED
    submitter: Submitter = NOBODY

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
        return self._needs(graph, workload, gpus, self.observed_figures(graph, workload, gpus))

    def observed_figures(
        self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]
    ) -> tuple[ObservedFigures, ...]:
        """Return what plugins, its user, or else earlier runs say about *workload* alone on each of *gpus*, whole ones.

        Raises:
            DeviceError: The user's step time is of a GPU that the catalogue does not have.
        """
        workload = self._with_catalogue_name(workload)
        answers = [*self.hooks.find_observed_figures(graph, workload, gpus, self.submitter)]
        alone = workload.alone
        if alone.gpu is not None and alone.step_time_s is not None:
            answers.append(self._observed_with_host(graph, workload, alone.gpu, alone.step_time_s, gpus))
        return first_known([*answers, *self._learned(graph, workload, gpus)], gpus)

    def find(self, graph: ModelGraph, workload: Workload) -> Finding:
        """Return what this site's runs show about the job; `NO_FINDING` where they show nothing."""
        return self.learned.find(graph, workload, self.submitter)

    def without_contradicted_values(self, graph: ModelGraph, workload: Workload) -> Workload:
        """Return *workload* without the utilization that its user gave, where many runs contradict it.

        One of another batch size is outweighed by many runs at this one, whatever it is.
        """
        user_utilization = workload.alone.utilization
        experience = self.find(graph, workload).experience if user_utilization is not None else None
        if (
            user_utilization is None
            or experience is None
            or not experience.contradicts(user_utilization if is_same_batch_size(workload) else None)
        ):
            return workload
        return replace(workload, alone=NO_EARLIER_RUN)

    def utilization_from_graph(self, graph: ModelGraph, workload: Workload, need: GpuNeed) -> float:
        """Return the GPU utilization alone on the GPU of *need*, as predicted from the model, nothing observed."""
        if workload.alone == NO_EARLIER_RUN and self.find(graph, workload) is NO_FINDING:
            return need.gpu_utilization.value
        plain = replace(self, learned=NOTHING_LEARNED)
        (predicted,) = plain.predict(graph, replace(workload, alone=NO_EARLIER_RUN), [self.catalogue.find(need.gpu)])
        return predicted.gpu_utilization.value

    def why_not_enforced(self, graph: ModelGraph) -> str:
        """Return why a share of this job is only advised for now, one clause; empty where it may be enforced."""
        return self.learned.why_not_enforced(graph, self.submitter)

    def _learned(self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> list[Sequence[ObservedFigures]]:
        """Return what earlier runs show on *gpus*; if the user gave other figures, the memory alone."""
        finding = self.find(graph, workload)
        if finding is NO_FINDING:
            return []
        has_user_figures = workload.alone != NO_EARLIER_RUN
        if finding.others:
            return [] if has_user_figures else [self._by_others(finding, graph, workload, gpus)]
        from gpusage.experience.estimates import own_figures  # numpy, for whoever has learned nothing

        known = own_figures(finding, graph, workload, gpus, self.catalogue.find)
        return [[ObservedFigures(memory_bytes=each.memory_bytes) for each in known] if has_user_figures else known]

    def _by_others(
        self, finding: Finding, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]
    ) -> Sequence[ObservedFigures]:
        """Return what other users' runs in *finding* show on *gpus*, within what the graph shows; nothing on slices."""
        from gpusage.experience.estimates import other_users_figures

        whole = [gpu for gpu in gpus if not gpu.parent_gpu]
        needs = self._needs(graph, workload, whole, (NOTHING_KNOWN,) * len(whole))
        rows = list(zip(whole, needs, strict=True))
        known = other_users_figures(finding, graph, workload, rows, self.catalogue.find)
        by_name = dict(zip((gpu.name for gpu in whole), known, strict=True))
        return [by_name.get(gpu.name, NOTHING_KNOWN) for gpu in gpus]

    def implausible_step_time(self, graph: ModelGraph, workload: Workload) -> str:
        """Return why the step time that the user gave cannot be, one sentence; empty where it can, or is of no GPU.

        Raises:
            DeviceError: The user's step time is of a GPU that the catalogue does not have.
        """
        alone = workload.alone
        return implausible_step_time(graph, workload, self.catalogue.find(alone.gpu)) if alone.gpu else ""

    def _observed_with_host(
        self, graph: ModelGraph, workload: Workload, measured_on: str, known_s: float, gpus: Sequence[Gpu]
    ) -> list[ObservedFigures]:
        """Return what a step of *known_s* on the GPU *measured_on* says about *gpus*."""
        gpus_of_run = (self.catalogue.find(measured_on), *gpus)
        plain = replace(workload, alone=NO_EARLIER_RUN)
        there, *needs = self._needs(graph, plain, gpus_of_run, (NOTHING_KNOWN,) * len(gpus_of_run))
        if known_s <= there.step_time_s.value:
            return [NOTHING_KNOWN] * len(gpus)
        from gpusage.predictors.sharing.slowdown import gpu_bound_odds  # numpy, and few users know a step time

        of_gpu = gpu_bound_odds(graph, plain, gpus_of_run[0], known_s)
        return [figures_from_longer_step(known_s, there, need, of_gpu) for need in needs]

    def _needs(
        self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], known: Sequence[ObservedFigures]
    ) -> tuple[GpuNeed, ...]:
        if graph.fixed_batch_size not in (None, workload.batch_size):
            message = (
                f"Model {graph.name!r} must be run at the batch size it was exported for, {graph.fixed_batch_size}; "
                f"got batch={workload.batch_size}. {DYNAMIC_BATCH}."
            )
            raise GraphError(message)
        needs = tuple(require_answer("predict_needs", self.hooks.predict_needs(graph, workload, gpus, known)))
        slices = [gpu for gpu in gpus if gpu.parent_gpu]
        return self._with_slowdowns(graph, workload, needs, slices) if slices else needs

    def _with_slowdowns(
        self, graph: ModelGraph, workload: Workload, needs: Sequence[GpuNeed], slices: Sequence[Gpu]
    ) -> tuple[GpuNeed, ...]:
        """Return *needs*, those of *slices* with what these cost against the GPUs that they are cut from."""
        boards, parts = [self.catalogue.find(gpu.board) for gpu in slices], [self._no_larger(gpu) for gpu in slices]
        known = self.observed_figures(graph, workload, boards)
        answer = require_answer("predict_slowdown", self.hooks.predict_slowdown(graph, workload, boards, parts, known))
        costs = {gpu.name: _least(of_parts) for gpu, of_parts in zip(slices, answer, strict=True)}
        return tuple(replace(need, slowdown=costs.get(need.gpu, need.slowdown)) for need in needs)

    def _no_larger(self, cut: Gpu) -> list[Gpu]:
        """Return the slice *cut* and those that have no more of anything, than which it cannot cost more."""
        others = (gpu for gpu in self.catalogue if gpu.parent_gpu == cut.parent_gpu and gpu is not cut)
        return [cut, *(gpu for gpu in others if _is_within(gpu, cut))]

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
        return self._prices(graph, workload, gpus, percents, self.observed_figures(graph, workload, gpus))

    def predict_shares(
        self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], percents: Sequence[int]
    ) -> tuple[GpuNeed, ...]:
        """Return what *workload* needs on each share of the first of *gpus*, then of the next, with what it costs.

        Arguments and errors are those of `price`.
        """
        pairs = [(gpu, part) for gpu in gpus for part in shares_alone_of(gpu, percents)]
        known = dict(zip(map(id, gpus), self.observed_figures(graph, workload, gpus), strict=True))
        distinct_gpus = list({id(gpu): gpu for gpu in (*gpus, *(part for _, part in pairs))}.values())
        of_each = [known.get(id(gpu), NOTHING_KNOWN) for gpu in distinct_gpus]
        needs = dict(zip(map(id, distinct_gpus), self._needs(graph, workload, distinct_gpus, of_each), strict=True))
        prices = self._prices(graph, workload, gpus, percents, [known[id(gpu)] for gpu in gpus])
        return tuple(
            _on_share(
                _with_known(needs[id(part)], known[id(gpu)], price), workload, gpu, price, needs[id(gpu)].step_time_s
            )
            for (gpu, part), price in zip(pairs, chain.from_iterable(prices), strict=True)
        )

    def _prices(
        self,
        graph: ModelGraph,
        workload: Workload,
        gpus: Sequence[Gpu],
        percents: Sequence[int],
        known: Sequence[ObservedFigures],
    ) -> tuple[tuple[Price, ...], ...]:
        parts = [(*shares_alone_of(gpu, percents), *shares_of(gpu, percents)) for gpu in gpus]
        answer = require_answer("predict_slowdown", self.hooks.predict_slowdown(graph, workload, gpus, parts, known))
        count = len(percents)
        prices = [
            tuple(
                Price(gpu=gpu.name, share_percent=percent, slowdown=by_itself, contended_slowdown=contended)
                for percent, by_itself, contended in zip(percents, row[:count], row[count:], strict=True)
            )
            for gpu, row in zip(gpus, answer, strict=True)
        ]
        experience = self.find(graph, workload).experience
        if experience is not None and experience.slowdown:
            from gpusage.experience.estimates import raise_prices

            prices = [raise_prices(experience, of_gpu) for of_gpu in prices]
        return tuple(prices)

    def colocate(self, needs: Sequence[GpuNeed], gpu: Gpu) -> Colocation:
        """Return what jobs, each given by its need on *gpu*, do to each other there."""
        return require_answer("predict_colocation", self.hooks.predict_colocation(needs, gpu))

    def _with_catalogue_name(self, workload: Workload) -> Workload:
        """Return *workload*, the GPU that its user's step time is of by its name of the catalogue."""
        alone = workload.alone
        if alone.gpu is None:
            return workload
        return replace(workload, alone=replace(alone, gpu=self.catalogue.find(alone.gpu).name))


def _is_within(gpu: Gpu, other: Gpu) -> bool:
    return gpu.sm_count <= other.sm_count and gpu.bandwidth_bytes_per_s <= other.bandwidth_bytes_per_s


def _least(costs: Sequence[Interval]) -> Interval:
    """Return the least point of *costs*, and the least of either end."""
    low, value, high = (min(ends) for ends in zip(*((one.low, one.value, one.high) for one in costs), strict=True))
    return Interval(value=value, low=low, high=high)


def require_answer(hook: str, answer: T | None) -> T:
    """Return *answer* to *hook*, which some plugin must give.

    Raises:
        PluginError: Nobody did.
    """
    if answer is None:
        message = f"Hook {hook!r} must be answered by a plugin; got no answer. 'gpusage plugins' lists them."
        raise PluginError(message, plugin="none", hook=hook)
    return answer


def _with_known(need: GpuNeed, known: ObservedFigures, price: Price) -> GpuNeed:
    notes = () if price.share_percent == WHOLE_PERCENT else share_notes(known)
    return replace(need, notes=(*need.notes, *notes))


def _on_share(need: GpuNeed, workload: Workload, gpu: Gpu, price: Price, alone_s: Interval) -> GpuNeed:
    step_time_s = product(alone_s, price.slowdown)
    need = replace(need, step_time_s=step_time_s, throughput_samples_per_s=throughput(workload, step_time_s))
    if price.share_percent == WHOLE_PERCENT:
        return replace(need, fits=need.required_bytes.high <= gpu.memory_bytes)
    cap_bytes = memory_cap_bytes(gpu.memory_bytes, price.share_percent)
    fits = need.share_memory_bytes <= cap_bytes
    note = (
        f"A share of {price.share_percent} % of {gpu.name} may use {gib(cap_bytes)}; this job must have "
        f"{gib(need.share_memory_bytes)} there, which 1 of 1,000 jobs exceeds."
    )
    return replace(
        need,
        fits=fits,
        share_percent=price.share_percent,
        slowdown=price.slowdown,
        notes=need.notes if fits else (*need.notes, note),
    )
