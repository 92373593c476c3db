"""What a workload needs on GPUs, and what shares of them cost: plugins are asked, and their answers put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from gpusage.devices.catalogue import Catalogue
from gpusage.devices.shares import shares_of
from gpusage.learning.findings import NOTHING, Finding, contradicts
from gpusage.learning.learned import NOTHING_LEARNED, Learned
from gpusage.plugins.hooks import NOBODY, Hooks
from gpusage.predictors.known import (
    NOTHING_KNOWN,
    NOTHING_SAID,
    beside_host,
    disbelief,
    first_known,
    is_of,
    share_notes,
    throughput,
)
from gpusage.predictors.learned.intervals import product
from gpusage_hooks.errors import GraphError, PluginError
from gpusage_hooks.types import Colocation, Gpu, GpuNeed, Interval, Known, ModelGraph, Price, Submitter, Workload
from gpusage_hooks.units import WHOLE_PERCENT

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """Answers what a workload needs.

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
        return self._needs(graph, workload, gpus, self.known(graph, workload, gpus))

    def known(self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> tuple[Known, ...]:
        """Return what plugins, its user, or else earlier runs tell of *workload* alone on each of *gpus*, whole ones.

        Raises:
            DeviceError: The user's step time is of a GPU that the catalogue does not have.
        """
        workload = self._named(workload)
        answers = [*self.hooks.known_figures(graph, workload, gpus, self.submitter)]
        alone = workload.alone
        if alone.gpu is not None and alone.step_time_s is not None:
            answers.append(self._beside_host(graph, workload, alone.gpu, alone.step_time_s, gpus))
        return first_known([*answers, *self._learned(graph, workload, gpus)], gpus)

    def find(self, graph: ModelGraph, workload: Workload) -> Finding:
        """Return what this site's runs tell of the job; `NOTHING` where they tell nothing."""
        return self.learned.find(graph, workload, self.submitter)

    def believed(self, graph: ModelGraph, workload: Workload) -> Workload:
        """Return *workload* without the utilization that its user gave, where many runs contradict it.

        One of another batch size is outweighed by many runs at this one, whatever it is.
        """
        told = workload.alone.utilization
        experience = self.find(graph, workload).experience if told is not None else None
        if told is None or experience is None or not contradicts(experience, told if is_of(workload) else None):
            return workload
        return replace(workload, alone=NOTHING_SAID)

    def told_by_graph(self, graph: ModelGraph, workload: Workload, need: GpuNeed) -> float:
        """Return the GPU utilization alone on the GPU of *need*, as the model tells it without what anybody knows."""
        if workload.alone == NOTHING_SAID and self.find(graph, workload) is NOTHING:
            return need.gpu_utilization.value
        plain = replace(self, learned=NOTHING_LEARNED)
        (predicted,) = plain.predict(graph, replace(workload, alone=NOTHING_SAID), [self.catalogue.find(need.gpu)])
        return predicted.gpu_utilization.value

    def why_not_enforced(self, graph: ModelGraph) -> str:
        """Return why a share of this job is only advised for now, one clause; empty where it may be enforced."""
        return self.learned.why_not_enforced(graph, self.submitter)

    def _learned(self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> list[Sequence[Known]]:
        """Return what earlier runs tell of *gpus*; of what the user told more about, the memory alone."""
        finding = self.find(graph, workload)
        if finding is NOTHING:
            return []
        from gpusage.learning.figures import known_of  # noqa: PLC0415 - numpy, for whoever has learned nothing

        known = known_of(finding, graph, workload, gpus, self.catalogue.find)
        said = workload.alone != NOTHING_SAID
        return [[Known(memory_bytes=each.memory_bytes) for each in known] if said else known]

    def disbelief(self, graph: ModelGraph, workload: Workload) -> str:
        """Return why the step time that the user gave cannot be, one sentence; empty where it can, or is of no GPU.

        Raises:
            DeviceError: The user's step time is of a GPU that the catalogue does not have.
        """
        alone = workload.alone
        return disbelief(graph, workload, self.catalogue.find(alone.gpu)) if alone.gpu else ""

    def _beside_host(
        self, graph: ModelGraph, workload: Workload, measured_on: str, known_s: float, gpus: Sequence[Gpu]
    ) -> list[Known]:
        """Return what a step of *known_s* on the GPU *measured_on* says about *gpus*."""
        asked = (self.catalogue.find(measured_on), *gpus)
        plain = replace(workload, alone=NOTHING_SAID)
        there, *needs = self._needs(graph, plain, asked, (NOTHING_KNOWN,) * len(asked))
        if known_s <= there.step_time_s.value:
            return [NOTHING_KNOWN] * len(gpus)
        from gpusage.predictors.slowdown import gpu_explains  # noqa: PLC0415 - numpy, and few users know a step time

        of_gpu = gpu_explains(graph, plain, asked[0], known_s)
        return [beside_host(known_s, there, need, of_gpu) for need in needs]

    def _needs(
        self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], known: Sequence[Known]
    ) -> tuple[GpuNeed, ...]:
        if graph.fixed_batch_size not in (None, workload.batch_size):
            message = (
                f"Model {graph.name!r} must be run at the batch size it was exported for, {graph.fixed_batch_size}; "
                f"got batch={workload.batch_size}. Export it with a dynamic batch axis."
            )
            raise GraphError(message)
        needs = tuple(answered("predict_needs", self.hooks.predict_needs(graph, workload, gpus, known)))
        slices = [gpu for gpu in gpus if gpu.cut_from]
        return self._with_slowdowns(graph, workload, needs, slices) if slices else needs

    def _with_slowdowns(
        self, graph: ModelGraph, workload: Workload, needs: Sequence[GpuNeed], slices: Sequence[Gpu]
    ) -> tuple[GpuNeed, ...]:
        """Return *needs*, those of *slices* with what these cost against the GPUs that they are cut from."""
        boards, parts = [self.catalogue.find(gpu.board) for gpu in slices], [self._no_larger(gpu) for gpu in slices]
        known = self.known(graph, workload, boards)
        answer = answered("predict_slowdown", self.hooks.predict_slowdown(graph, workload, boards, parts, known))
        costs = {gpu.name: _least(of_parts) for gpu, of_parts in zip(slices, answer, strict=True)}
        return tuple(replace(need, slowdown=costs.get(need.gpu, need.slowdown)) for need in needs)

    def _no_larger(self, cut: Gpu) -> list[Gpu]:
        """Return the slice *cut* and those that have no more of anything, than which it cannot cost more."""
        others = (gpu for gpu in self.catalogue if gpu.cut_from == cut.cut_from and gpu is not cut)
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
        known: Sequence[Known],
    ) -> tuple[tuple[Price, ...], ...]:
        parts = [shares_of(gpu, percents) for gpu in gpus]
        answer = answered("predict_slowdown", self.hooks.predict_slowdown(graph, workload, gpus, parts, known))
        experience = self.find(graph, workload).experience
        if experience is not None and experience.slowdown:
            from gpusage.learning.figures import dearer  # noqa: PLC0415 - as above

            answer = [dearer(experience, gpu, percents, row) for gpu, row in zip(gpus, answer, strict=True)]
        rows = zip(gpus, answer, strict=True)
        return tuple(
            tuple(
                Price(gpu=gpu.name, share_percent=percent, slowdown=slowdown)
                for percent, slowdown in zip(percents, slowdowns, strict=True)
            )
            for gpu, slowdowns in rows
        )

    def colocate(self, needs: Sequence[GpuNeed], gpu: Gpu) -> Colocation:
        """Return what jobs, each given by its need on *gpu*, do to each other there."""
        return answered("predict_colocation", self.hooks.predict_colocation(needs, gpu))

    def _named(self, workload: Workload) -> Workload:
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


def answered(hook: str, answer: T | None) -> T:
    """Return *answer* to *hook*, which somebody must give.

    Raises:
        PluginError: Nobody did.
    """
    if answer is None:
        message = f"Hook {hook!r} must be answered by a plugin; got no answer. 'gpusage plugins' lists them."
        raise PluginError(message, plugin="none", hook=hook)
    return answer


def _with_known(need: GpuNeed, known: Known, price: Price) -> GpuNeed:
    notes = () if price.share_percent == WHOLE_PERCENT else share_notes(known)
    return replace(need, notes=(*need.notes, *notes))


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
