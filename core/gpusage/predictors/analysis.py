"""What one model needs when it is run in one way: an object whose parts are computed on first use, and cached.

`WorkloadAnalysis` is the half that no GPU changes; `GpuAnalysis` is the other, computed for all GPUs at once.

A graph caches the newest analyses of it (`gpusage_hooks.types.ModelGraph.derived`), so that whoever holds the graph
decides how long they live: gpusaged holds a bounded weight of graphs, and drops an analysis with its graph.

Nothing that a graph caches refers to that graph: it is freed when its owner drops it, without the collector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from gpusage.caches import Newest, lazy
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.artifacts import Pretrained, pretrained
from gpusage.predictors.extrapolation import extrapolation_warnings, gpu_warnings
from gpusage.predictors.intervals import as_wide, at_least, scaled
from gpusage.predictors.memory.peak import Peak, decoding_peak, tensor_peak, with_context
from gpusage.predictors.parallel.data_parallel import waiting_s
from gpusage.predictors.parallel.decoding import is_pipeline
from gpusage.predictors.parallel.division import NOT_MEASURED, wait_in_copy_s
from gpusage.predictors.parallel.pipeline import micro_batches_in_flight, stages_of
from gpusage.predictors.step_work import ModelStructures, StepWork
from gpusage.predictors.times.activity import Activity, activities, gaps_of, while_idle, while_waiting
from gpusage.predictors.times.kernel_times import KernelTimes
from gpusage.predictors.times.kernels import Kernels
from gpusage.predictors.times.step_time import (
    Timing,
    decoding_timing,
    engine_of,
    reserved_share,
    step_times_s,
    times_on,
    timing_with,
)
from gpusage.predictors.work.checkpoints import Checkpoints
from gpusage.predictors.work.lowering import with_adapters
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.job_keys import step_settings_of
from gpusage_hooks.types import Gpu, Interval, MemoryInterval, ModelGraph, Workload


class GpuAnalysis:
    """What a workload needs on some GPUs, one entry per GPU; each part is computed on first use.

    It has what it needs of the step, not the step itself, which caches it: a circle would wait for the collector.

    Attributes:
        gpus: Which they are.
        kernels: Of the workload, as are *work* and *graph*.
        kernels_of_passes: Of a pipeline, those without the update.
        decoding: What a language model takes to write; none where the workload is a plain pass.
        passes: The kernels of its two passes; none without.
        exchange: What several GPUs that generate send in a pass; none on one.
        division: What several GPUs that train send.
    """

    def __init__(self, step: StepWork, gpus: Sequence[Gpu]) -> None:
        # A host was measured by eager steps: of others it shows nothing.
        is_eager = engine_of(step.workload) == "eager"
        self.gpus = tuple(gpu if is_eager or gpu.host_factor == 1.0 else replace(gpu, host_factor=1.0) for gpu in gpus)
        self.graph = step.graph
        self.workload = step.workload
        self.kernels = step.kernels
        self.kernels_of_passes = step.kernels_of_passes
        self.decoding = step.decoding
        self.exchange = step.divided_decoding and step.divided_decoding.exchange
        self.passes = step.passes
        self.work = step.work
        self.division = step.division
        self.efficiency = step.efficiency
        self.pretrained = step.pretrained

    @lazy
    def timing(self) -> Timing:
        """Seconds of one step, and what they are made of."""
        whole = self._timing_of(self.kernels)
        if self.decoding is None:
            return whole
        first, then = map(self._timing_of, self.passes)
        return decoding_timing(whole, first, then, self.decoding.decode_count)

    @lazy
    def tokens(self) -> tuple[Timing, ...]:
        """Times of the prefill and of one decode pass, sums over GPUs included; empty where none is written."""
        timings = map(self._timing_of, self.passes)
        if self.exchange is None:
            return tuple(timings)
        each = zip(timings, self.exchange.seconds(self.gpus, self.workload.gpus), strict=True)
        return tuple(replace(timing, step_s=timing.step_s + sum_s) for timing, sum_s in each)

    def _timing_of(self, kernels: Kernels) -> Timing:
        return timing_with(self.efficiency, kernels, self.gpus, self.workload.precision)

    @lazy
    def kernel_times(self) -> KernelTimes:
        """Seconds of each kernel, to six digits: of many GPUs in little time."""
        return times_on(self.efficiency, self.kernels, self.gpus, self.workload.precision, np.float32).as_run

    @lazy
    def step_time_s(self) -> list[Interval]:
        """Seconds of one step, with the wait for other GPUs."""
        of_one = step_times_s(self.efficiency, self.graph, self.workload, self.gpus, self.timing)
        if self.workload.gpus == 1:
            return of_one

        # Where each has a whole copy, none is surer than alone, where weights are cast in short kernels of their own.
        if self.workload.mode == "train" and not self.division.divides_copy:
            alone = analyze(self.graph, replace(self.workload, gpus=1)).step_time_s(self.gpus)
            of_one = [as_wide(one, by) for one, by in zip(of_one, alone, strict=True)]

        # What a GPU waits for others is as uncertain as its own work.
        each = zip(of_one, self.waiting_s, strict=True)
        return [scaled(step_s, 1.0 + wait_s / step_s.value) for step_s, wait_s in each]

    @lazy
    def _waits_in_copy_s(self) -> list[float]:
        """Seconds of a step in which each GPU waits for those that hold other parts of its copy of the model."""
        if not self.division.divides_copy:
            return [0.0] * len(self.gpus)
        is_whole = self.kernels_of_passes is self.kernels
        timing = self.timing if is_whole else self._timing_of(self.kernels_of_passes)

        # Keys and values of other GPUs come round while a GPU computes its attentions.
        attends = np.isin(self.kernels.operator_class, (OperatorClass.BATCHED_PRODUCT, OperatorClass.ATTENTION))
        attends &= self.workload.context > 1
        attention_s = self.kernels.counts[attends] @ self.kernel_times.total_s[attends]

        each = zip(self.gpus, timing.step_s.tolist(), attention_s.tolist(), strict=True)
        traffic = self.division.copy_traffic
        return [wait_in_copy_s(traffic, step_s, part_s, self.workload, gpu) for gpu, step_s, part_s in each]

    @lazy
    def waiting_s(self) -> list[float]:
        """Seconds of a step in which each GPU waits for the gradients of others, or for sums over all of them."""
        if self.workload.gpus == 1:
            return [0.0] * len(self.gpus)
        if self.exchange and self.decoding:
            prompt_s, token_s = self.exchange.seconds(self.gpus, self.workload.gpus)
            sums_s: list[float] = (prompt_s + self.decoding.decode_count * token_s).tolist()
            return sums_s
        each = zip(self.gpus, self.timing.step_s.tolist(), self._waits_in_copy_s, strict=True)
        gradients = self.division.gradients
        return [wait + waiting_s(gradients, step_s + wait, self.workload, gpu) for gpu, step_s, wait in each]

    @lazy
    def activity(self) -> list[Activity]:
        """How busy the workload keeps each GPU when alone there."""
        gaps_s = gaps_of(self.pretrained.activity, self.workload.mode, float(self.kernels.counts.sum()))
        alone = activities(self.pretrained.activity, self.graph, self.work, self.timing, gaps_s)
        if self.workload.gpus == 1:
            return alone

        if is_pipeline(self.workload):  # the others compute meanwhile
            return [while_idle(activity, 1.0 - 1.0 / self.workload.gpus) for activity in alone]
        each = zip(alone, self.timing.step_s.tolist(), self.waiting_s, strict=True)
        return [while_waiting(activity, step_s, waits_s) for activity, step_s, waits_s in each]


CACHED_ANALYSES = 3
"""About one graph."""
CACHED_GPU_LISTS = 3
"""In one analysis: a cluster's GPUs, their shares, and one more."""
NO_BLOCKS = (
    "The model has no repeated blocks to put checkpoints between: the prediction assumes that all of it is computed "
    "twice and that checkpoints save no memory."
)
_AnalysisKey = tuple[Pretrained, Workload, bool]


class WorkloadAnalysis(StepWork):
    """A model that is run in one way; of its workload, what `step_settings_of` leaves counts.

    Attributes:
        in_flight: Micro-batches whose activations a stage of a pipeline keeps, of all nodes or of each; else 1.
        first_stage: Of a pipeline, where *graph* is its last.
        whole: The model of which *graph* is a stage; *graph* itself without a pipeline.
    """

    def __init__(
        self,
        graph: ModelGraph,
        workload: Workload,
        blocks: Checkpoints | None = None,
        in_flight: FloatArray | float = 1.0,
        *,
        has_narrow_cache: bool = False,
    ) -> None:
        super().__init__(_cache_of(graph).structures, workload, blocks)
        self.has_narrow_cache = has_narrow_cache
        self.in_flight = in_flight
        self.first_stage: WorkloadAnalysis | None = None
        self.whole = self.graph
        self._on_gpus: Newest[tuple[int, ...], GpuAnalysis] = Newest(CACHED_GPU_LISTS)

    @property
    def peak(self) -> Peak:
        """Peak bytes without the CUDA context."""
        return self.fullest_stage.stage_peak

    @property
    def fullest_stage(self) -> WorkloadAnalysis:
        """The stage of a pipeline that needs most memory; itself without one."""
        if self.first_stage is None:
            return self
        return max((self, self.first_stage), key=lambda stage: stage.stage_peak.required.value)

    @lazy
    def stage_peak(self) -> Peak:
        """What `peak` is where no other stage of a pipeline needs more."""
        if self.divided_decoding:
            return decoding_peak(self.pretrained.memory, self.graph, self.divided_decoding.held, self.workload)
        return tensor_peak(self.pretrained.memory, self.graph, self.division, self.checkpoints, self.in_flight)

    @lazy
    def _warnings(self) -> tuple[str, ...]:
        """What there is on any GPU."""
        warnings = extrapolation_warnings(self.pretrained.step_time_card, self.whole, self.lowering, self.workload)
        several = (NOT_MEASURED,) if self.workload.gpus > 1 else ()
        unblocked = (NO_BLOCKS,) if self.checkpoints and not self.checkpoints.has_blocks else ()
        return (*warnings, *unblocked, *several)

    def on(self, gpus: Sequence[Gpu]) -> GpuAnalysis:
        """Return what the workload needs on *gpus*, which are compared by identity and stay alive with the result."""
        return self._on_gpus.find(tuple(map(id, gpus)), partial(GpuAnalysis, self, gpus))

    def timing(self, gpus: Sequence[Gpu]) -> Timing:
        """Return the seconds of one step on *gpus*, and what they are made of."""
        return self.on(gpus).timing

    def kernels_s(self, parts: Sequence[Gpu]) -> FloatArray:
        """Return `Timing.kernels_s` on *parts* of GPUs, to six digits: many of them take little time."""
        there = self.on(parts)
        seconds: FloatArray = there.kernels.counts @ there.kernel_times.total_s
        return seconds

    def step_time_s(self, gpus: Sequence[Gpu]) -> list[Interval]:
        """Return the seconds of one step on each of *gpus*."""
        return self.on(gpus).step_time_s

    def peaks(self, gpus: Sequence[Gpu]) -> list[Peak]:
        """Return the peaks of device memory on each of *gpus*, if it is free, context included."""
        peaks = []
        for gpu in gpus:
            peak = with_context(self.peak, gpu)
            reserved_bytes = reserved_share(self.workload) * gpu.memory_bytes
            peaks.append(peak._replace(taken=at_least(peak.taken, reserved_bytes)) if reserved_bytes else peak)
        return peaks

    def memory_bytes(self, gpus: Sequence[Gpu]) -> list[Interval]:
        """Return the peak bytes of device memory that are taken on each of *gpus*, if it is free, context included."""
        return [peak.taken for peak in self.peaks(gpus)]

    def required_bytes(self, gpus: Sequence[Gpu]) -> list[MemoryInterval]:
        """Return the bytes of device memory that are needed on each of *gpus*, context included."""
        return [peak.required for peak in self.peaks(gpus)]

    def activity(self, gpus: Sequence[Gpu]) -> list[Activity]:
        """Return how busy the workload keeps each of *gpus* when alone there."""
        return self.on(gpus).activity

    def warnings(self, gpus: Sequence[Gpu]) -> list[tuple[str, ...]]:
        """Return, for each of *gpus*, one sentence for each reason not to trust the figures as usual."""
        of_gpus = gpu_warnings(self.pretrained.step_time_card, gpus)
        return [(*self._warnings, *of_gpu) for of_gpu in of_gpus]


class _GraphCache(NamedTuple):
    """What a graph caches."""

    structures: ModelStructures
    analyses: Newest[_AnalysisKey, WorkloadAnalysis]


def analyze(graph: ModelGraph, workload: Workload, *, has_narrow_cache: bool = False) -> WorkloadAnalysis:
    """Return what *workload* of *graph* needs, the same object as before while *graph* caches it.

    Args:
        graph: The model.
        workload: How it is run.
        has_narrow_cache: Whether a number in its cache of keys and values has 1 byte, whatever its precision.
    """
    key = (pretrained(), step_settings_of(workload), has_narrow_cache)
    return _cache_of(graph).analyses.find(key, partial(_analysis, graph, workload, has_narrow_cache=has_narrow_cache))


def _analysis(graph: ModelGraph, workload: Workload, *, has_narrow_cache: bool) -> WorkloadAnalysis:
    if workload.lora is not None:
        graph = with_adapters(graph, workload.lora)
        workload = replace(workload, trainable=graph.trainable)
    if workload.pipeline == 1:
        return WorkloadAnalysis(graph, workload, has_narrow_cache=has_narrow_cache)

    # Layers are found by their shapes alone. Of a pipeline, the last stage takes longest, and the first may be fullest.
    undivided = WorkloadAnalysis(graph, Workload(batch_size=workload.batch_size)).lowering
    first, last = stages_of(graph, undivided, workload.pipeline, workload.virtual_pipeline)
    of_first, of_last = micro_batches_in_flight(workload)
    of_nodes = np.where(last.blocks.recomputed_nodes, of_last, 1.0)  # the output's backward pass follows at once
    analysis = WorkloadAnalysis(last.graph, workload, last.blocks, of_nodes)
    analysis.first_stage = WorkloadAnalysis(first.graph, workload, first.blocks, of_first)
    analysis.whole = _cache_of(graph).structures.graph
    return analysis


def _cache_of(graph: ModelGraph) -> _GraphCache:
    cache = graph.derived.get(__name__)
    if not isinstance(cache, _GraphCache):
        cache = graph.derived[__name__] = _GraphCache(ModelStructures(graph), Newest(CACHED_ANALYSES))
    return cache
