"""The need of a workload on GPUs, and the price of shares of them: the predictions of all plugins, merged.

An observed figure takes the place of a predicted one: a plugin's first, then the user's, then those of earlier runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import TypeVar

from gpusage.devices.catalogue import Catalogue
from gpusage.devices.shares import shares_alone_of, shares_of
from gpusage.experience.learned import NO_FINDING, NOTHING_LEARNED, Finding, Learned
from gpusage.graphs.model_files import DYNAMIC_BATCH
from gpusage.graphs.reader import LIBRARIES
from gpusage.plugins.hooks import NOBODY, Hooks
from gpusage.predictors.intervals import exact_interval
from gpusage.predictors.known import (
    NO_EARLIER_RUN,
    NOTHING_KNOWN,
    contention,
    figures_from_step,
    first_known,
    implausible_step_time,
    is_same_batch_size,
    of_all_processes,
    of_one_process,
    on_share,
    price_together,
    share_notes,
    workload_of_step,
)
from gpusage_hooks.errors import GraphError, PluginError
from gpusage_hooks.types import (
    Colocation,
    Figure,
    Gpu,
    GpuNeed,
    Interval,
    ModelGraph,
    ModelRequest,
    ObservedFigures,
    Price,
    Submitter,
    Workload,
)
from gpusage_hooks.units import WHOLE_PERCENT

T = TypeVar("T")
MOST_SAMPLES = 2**30
"""Of a batch: no larger one is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """Predicts the need of a workload.

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
        """Return the need of *workload* on each of *gpus*, in their order.

        Args:
            graph: The model.
            workload: How it is run, and what its user knows of a run alone on a whole GPU.
            gpus: Whole GPUs, and slices, each of which also has its price against the GPU that it is cut from.

        Raises:
            GraphError: The model has a fixed batch size, and the workload another.
            DeviceError: The user's step time is of a GPU that the catalogue does not have.
        """
        return self._needs(graph, workload, gpus, self.observed_figures(graph, workload, gpus))

    def price(
        self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], percents: Sequence[int]
    ) -> tuple[tuple[Price, ...], ...]:
        """Return the price of each share of each of *gpus* for *workload*, in their order: all are priced at once.

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
        """Return the need and the price of each share of the first of *gpus*, then of the next.

        Arguments and errors are those of `price`.
        """
        pairs = [(gpu, part) for gpu in gpus for part in shares_alone_of(gpu, percents)]
        known = dict(zip(map(id, gpus), self.observed_figures(graph, workload, gpus), strict=True))

        # A share of 100 % is the GPU itself, which is predicted once; nothing is observed on any other part.
        distinct_gpus = list({id(gpu): gpu for gpu in (*gpus, *(part for _, part in pairs))}.values())
        of_each = [known.get(id(gpu), NOTHING_KNOWN) for gpu in distinct_gpus]
        needs = dict(zip(map(id, distinct_gpus), self._needs(graph, workload, distinct_gpus, of_each), strict=True))
        prices = self._prices(graph, workload, gpus, percents, [known[id(gpu)] for gpu in gpus])

        shares = []
        for (gpu, part), price in zip(pairs, chain.from_iterable(prices), strict=True):
            need = needs[id(part)]
            if price.share_percent < WHOLE_PERCENT:
                need = replace(need, notes=(*need.notes, *share_notes(known[id(gpu)])))
            shares.append(on_share(need, workload, gpu, price, needs[id(gpu)].step_time_s))
        return tuple(shares)

    def colocate(self, needs: Sequence[GpuNeed], gpu: Gpu) -> Colocation:
        """Return the co-location of jobs on *gpu*, by the need of each there."""
        return require_answer("predict_colocation", self.hooks.predict_colocation(needs, gpu))

    def find(self, graph: ModelGraph, workload: Workload) -> Finding:
        """Return the evidence of this site's runs about the job; `NO_FINDING` where there is none."""
        return self.learned.find(graph, workload, self.submitter)

    def observed_figures(
        self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]
    ) -> tuple[ObservedFigures, ...]:
        """Return the observed figures of *workload* alone on each of *gpus*, whole ones, by plugins, its user or runs.

        Raises:
            DeviceError: The user's step time is of a GPU that the catalogue does not have.
        """
        alone = workload.alone
        if alone.gpu is not None:  # by the catalogue's name, which plugins and predictors compare
            alone = replace(alone, gpu=self.catalogue.find(alone.gpu).name)
            workload = replace(workload, alone=alone)

        answers = [*self.hooks.find_observed_figures(graph, workload, gpus, self.submitter)]
        of_step = self._figures_from_step(graph, workload, answers, gpus) if answers or alone.gpu else []
        return first_known([*answers, *self._learned(graph, workload, gpus), *of_step], gpus)

    def without_contradicted_values(self, graph: ModelGraph, workload: Workload) -> Workload:
        """Return *workload* without the utilization that its user gave, where many runs contradict it.

        One of another batch size is outweighed by many runs at this one, whatever it is.
        """
        user_utilization = workload.alone.utilization
        if user_utilization is None:
            return workload

        experience = self.find(graph, workload).experience
        comparable = user_utilization if is_same_batch_size(workload) else None
        is_wrong = experience is not None and experience.contradicts(comparable)
        return replace(workload, alone=NO_EARLIER_RUN) if is_wrong else workload

    def step_doubt(self, graph: ModelGraph, workload: Workload) -> str:
        """Return why the step time that the user gave of one GPU is not used, one sentence; empty where it is."""
        gpu = workload.alone.gpu
        return implausible_step_time(graph, workload, self.catalogue.find(gpu)) if gpu else ""

    def utilization_from_graph(self, graph: ModelGraph, workload: Workload, need: GpuNeed) -> float:
        """Return the GPU utilization alone on the GPU of *need*, as predicted from the model, nothing observed."""
        if workload.alone == NO_EARLIER_RUN and self.find(graph, workload) is NO_FINDING:
            return need.gpu_utilization.value
        plain = replace(self, learned=NOTHING_LEARNED)
        (predicted,) = plain.predict(graph, replace(workload, alone=NO_EARLIER_RUN), [self.catalogue.find(need.gpu)])
        return predicted.gpu_utilization.value

    def _learned(self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> list[Sequence[ObservedFigures]]:
        """Return the figures of earlier runs on *gpus*; if the user gave other figures, the memory alone."""
        finding = self.find(graph, workload)
        has_user_figures = workload.alone != NO_EARLIER_RUN
        if finding is NO_FINDING or (finding.others and has_user_figures):
            return []
        from gpusage.experience.estimates import other_users_figures, own_figures  # no numpy where nothing was learned

        if not finding.others:
            known = own_figures(finding, graph, workload, gpus, self.catalogue.find)
            return [[ObservedFigures(memory_bytes=each.memory_bytes) for each in known] if has_user_figures else known]

        # Other users' runs count within what the graph shows, and not on slices.
        whole = [gpu for gpu in gpus if not gpu.parent_gpu]
        needs = self._needs(graph, workload, whole, (NOTHING_KNOWN,) * len(whole))
        rows = list(zip(whole, needs, strict=True))
        of_others = other_users_figures(finding, graph, workload, rows, self.catalogue.find)
        by_name = dict(zip((gpu.name for gpu in whole), of_others, strict=True))
        return [[by_name.get(gpu.name, NOTHING_KNOWN) for gpu in gpus]]

    def _figures_from_step(
        self, graph: ModelGraph, workload: Workload, answers: Sequence[Sequence[ObservedFigures]], gpus: Sequence[Gpu]
    ) -> list[Sequence[ObservedFigures]]:
        """Return what a step that the user or one of *answers* knows on one GPU shows about the other *gpus*."""
        alone, steps = workload.alone, [one.step_time_s for one in first_known(answers, gpus)]
        plain, of_user = replace(workload, alone=NO_EARLIER_RUN), workload_of_step(workload)
        measured = [(gpu, step.interval, plain) for gpu, step in zip(gpus, steps, strict=True) if step]
        if alone.gpu is not None and alone.step_time_s is not None and not self.step_doubt(graph, workload):
            # Any step of this batch says more than one of another.
            one = self.catalogue.find(alone.gpu), exact_interval(alone.step_time_s), of_user
            measured.insert(0 if of_user == plain else len(measured), one)
        if not measured or all(steps):
            return []
        gpu, known_s, observed = measured[0]
        (there,) = self._needs(graph, observed, (gpu,), (NOTHING_KNOWN,))
        needs = self._needs(graph, plain, gpus, [NOTHING_KNOWN] * len(gpus))
        from gpusage.predictors.sharing.slowdown import gpu_bound_odds  # imports numpy; few users know a step time

        # The user's utilization is of all processes.
        is_there = (alone.batch_size or plain.batch_size) == observed.batch_size
        share = alone.utilization / plain.processes if alone.utilization is not None and is_there else None
        of_gpu = gpu_bound_odds(graph, observed, gpu, known_s.value, share)

        # How busy a GPU would be that decides its step: what it takes longer than predicted, it works.
        shorter = min(known_s.value / there.step_time_s.value, 1.0)
        steps_s = [exact_interval(shorter * need.step_time_s.value) for need in needs]
        of_step = [ObservedFigures(step_time_s=Figure(interval=step_s, source=gpu.name)) for step_s in steps_s]
        busy = [need.gpu_utilization for need in self._needs(graph, plain, gpus, of_step)]
        sizes = plain.batch_size, observed.batch_size
        figures = [
            NOTHING_KNOWN
            if need.gpu == there.gpu and observed == plain
            else figures_from_step(known_s, there, need, share, of_gpu, sizes)
            for need, share in zip(needs, busy, strict=True)
        ]
        return [figures]

    def _needs(
        self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], known: Sequence[ObservedFigures]
    ) -> tuple[GpuNeed, ...]:
        if graph.fixed_batch_size not in (None, workload.batch_size):
            rule = f"be run at its only batch size, {graph.fixed_batch_size}; got batch={workload.batch_size}"
            is_named = graph.source.partition(":")[0] in LIBRARIES  # whose definition cannot be exported with others
            advice = "Use no other" if is_named else f"{DYNAMIC_BATCH}, or use no other"
            message = f"Model {graph.name!r} must {rule}. {advice}."
            raise GraphError(message)
        if workload.processes > 1:
            boards, nothing = [self.catalogue.find(gpu.board) for gpu in gpus], [NOTHING_KNOWN] * len(gpus)
            of_one = [of_one_process(each, workload.processes) for each in (*known, *nothing)]
            needs = self._needs(graph, replace(workload, processes=1), (*gpus, *boards), of_one)
            rows = zip(needs, known, gpus, needs[len(gpus) :], strict=False)
            return tuple(of_all_processes(one, workload, of_gpu, gpu, board) for one, of_gpu, gpu, board in rows)
        needs = tuple(require_answer("predict_needs", self.hooks.predict_needs(graph, workload, gpus, known)))
        if workload.alone.gpu and (doubt := self.step_doubt(graph, workload)):
            needs = tuple(replace(need, notes=(*need.notes, doubt)) for need in needs)

        # The price of a slice is against the GPU that it is cut from. It costs no more than one that has no more of
        # anything, so each is predicted together with these, and the least of each end counts.
        slices = [gpu for gpu in gpus if gpu.parent_gpu]
        if not slices:
            return needs
        boards = [self.catalogue.find(gpu.board) for gpu in slices]
        parts = [
            [gpu, *(other for other in self.catalogue if other.parent_gpu == gpu.parent_gpu and _is_within(other, gpu))]
            for gpu in slices
        ]
        observed = self.observed_figures(graph, workload, boards)
        answer = self.hooks.predict_slowdown(graph, workload, boards, parts, observed)
        costs = {}
        for gpu, of_parts in zip(slices, require_answer("predict_slowdown", answer), strict=True):
            ends = zip(*((cost.low, cost.value, cost.high) for cost in of_parts), strict=True)
            low, value, high = map(min, ends)
            costs[gpu.name] = Interval(value=value, low=low, high=high)
        return tuple(replace(need, slowdown=costs.get(need.gpu, need.slowdown)) for need in needs)

    def _prices(
        self,
        graph: ModelGraph,
        workload: Workload,
        gpus: Sequence[Gpu],
        percents: Sequence[int],
        known: Sequence[ObservedFigures],
    ) -> tuple[tuple[Price, ...], ...]:
        # Each share comes twice: alone, with the bandwidth of the whole GPU, and beside partners, with its part of it.
        # Each of several processes is priced on its part of the share.
        alike, each, longer = workload.processes, percents, []
        if alike > 1:
            each = [max(percent // alike, 1) if percent < WHOLE_PERCENT else percent for percent in percents]
            known, workload = [of_one_process(of_gpu, alike) for of_gpu in known], replace(workload, processes=1)
            needs = self._needs(graph, workload, gpus, known)
            longer = [contention(one, alike, of_gpu) for one, of_gpu in zip(needs, known, strict=True)]
        parts = [(*shares_alone_of(gpu, each), *shares_of(gpu, each)) for gpu in gpus]
        answer = require_answer("predict_slowdown", self.hooks.predict_slowdown(graph, workload, gpus, parts, known))
        if longer:  # what they wait for one another is no price of a share
            answer = [[price_together(one, of_gpu) for one in row] for row, of_gpu in zip(answer, longer, strict=True)]
        from gpusage.predictors.analysis import analyze  # numpy, for whoever only loads plugins
        from gpusage.predictors.sharing.slowdown import slowdown_rule

        count, powers = len(percents), slowdown_rule(analyze(graph, workload)).partners
        prices = [
            tuple(
                Price(
                    gpu=gpu.name,
                    share_percent=percent,
                    slowdown=by_itself,
                    contended_slowdown=contended,
                    partner_powers=powers,
                )
                for percent, by_itself, contended in zip(percents, row[:count], row[count:], strict=True)
            )
            for gpu, row in zip(gpus, answer, strict=True)
        ]

        experience = self.find(graph, workload).experience
        if experience is not None and experience.slowdown:
            from gpusage.experience.estimates import raise_prices

            prices = [raise_prices(experience, of_gpu) for of_gpu in prices]
        return tuple(prices)


def _is_within(gpu: Gpu, other: Gpu) -> bool:
    is_slower = gpu.bandwidth_bytes_per_s <= other.bandwidth_bytes_per_s
    return gpu is not other and is_slower and gpu.sm_count <= other.sm_count


def require_answer(hook: str, answer: T | None) -> T:
    """Return *answer* to *hook*, which some plugin must give.

    Raises:
        PluginError: Nobody did.
    """
    if answer is None:
        message = f"Hook {hook!r} must be answered by a plugin; got no answer. 'gpusage plugins' lists them."
        raise PluginError(message, plugin="none", hook=hook)
    return answer


def with_model_settings(workload: Workload, named: Collection[str], graph: ModelGraph) -> Workload:
    """Return *workload* with what *graph* settles, but for what its user *named*, by the keys of a comment.

    A model with quantised weights runs inference in their precision, and so do adapters that are trained above them;
    training trains the share that the model names. One with a batch of its own runs at that.
    """
    if graph.fixed_batch_size is not None and not {"batch", "batch_size"} & set(named):
        workload = replace(workload, batch_size=graph.fixed_batch_size)
    if workload.mode == "train" and not {"trainable", "lora"} & set(named):
        workload = replace(workload, trainable=graph.trainable)
    is_trained_whole = workload.mode == "train" and workload.lora is None and workload.trainable == 1
    precision = None if "precision" in named or is_trained_whole else graph.precision
    return replace(workload, precision=precision) if precision else workload


def on_gpus(workload: Workload, gpu_count: int, named: Collection[str]) -> Workload:
    """Return *workload* of a job with *gpu_count* GPUs: training that does not say how is data parallel on all.

    Who *named* ``gpus`` said how: ``gpus=1`` is a process of its own on each.
    """
    is_open = workload.gpus == 1 and workload.mode == "train" and "gpus" not in named
    return replace(workload, gpus=gpu_count) if is_open else workload


def request_with_model_settings(request: ModelRequest, graph: ModelGraph, gpu_count: int = 1) -> ModelRequest:
    """Return *request*, of a job with *gpu_count* GPUs, with what *graph* settles; its assumptions say so."""
    workload = with_model_settings(request.workload, request.named, graph)
    workload = on_gpus(workload, gpu_count, request.named) if gpu_count > 1 else workload
    settled = {"batch": workload.batch_size, "mode": workload.mode, "precision": workload.precision}
    assumed = [f"{key}={value}" for key, value in settled.items() if f"{key}=" in ",".join(request.assumed)]
    return replace(request, workload=workload, assumed=tuple(assumed))


def largest_batches(graph: ModelGraph, fits: Callable[[int], Sequence[bool]]) -> list[int]:
    """Return the largest batch of *graph* that fits, for each GPU; 0 where not even a single sample does.

    The batch is doubled until it does not fit, and the last interval is then halved: some twenty questions for each
    GPU, many of which several GPUs share.

    Args:
        graph: The model.
        fits: Whether a batch of so many samples fits, one entry per GPU. A batch that is larger than one that does not
            fit must not fit either, which holds because more batch never needs less memory.

    Raises:
        GraphError: The model has a fixed batch.
    """
    # The GPUs ask for the same sizes on their way up.
    cached_fits, largest = cache(fits), []
    for number in range(len(cached_fits(1))):
        too_many = 1
        while too_many <= MOST_SAMPLES and cached_fits(too_many)[number]:
            too_many *= 2
        between = range(too_many // 2 + 1, min(too_many, MOST_SAMPLES))
        largest.append(too_many // 2 + bisect_left(between, True, key=lambda size: not cached_fits(size)[number]))
    return largest
