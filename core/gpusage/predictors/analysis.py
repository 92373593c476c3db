"""What one model needs when it is run in one way: an object whose parts are computed on first use, and cached.

A graph caches the newest analyses of it (`gpusage_hooks.types.ModelGraph.derived`), so that whoever holds the graph
decides how long they live: gpusaged holds a bounded weight of graphs, and drops an analysis with its graph.

Nothing that a graph caches refers to that graph: it is freed when its owner drops it, without the collector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpusage.devices.object_keys import Newest
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.artifacts import Pretrained, pretrained
from gpusage.predictors.extrapolation import extrapolation_warnings
from gpusage.predictors.gpu_analysis import GpuAnalysis
from gpusage.predictors.intervals import at_least
from gpusage.predictors.lazy import lazy
from gpusage.predictors.memory.peak import Peak, generation_peak, tensor_peak, with_context
from gpusage.predictors.model_structures import ModelStructures
from gpusage.predictors.parallel.data_parallel import NOT_MEASURED
from gpusage.predictors.parallel.model_parallel import micro_batches_in_flight, stages_of
from gpusage.predictors.step_work import StepWork
from gpusage.predictors.times.activity import Activity
from gpusage.predictors.times.engines import RESERVED_SHARE, reserves_memory
from gpusage.predictors.times.step_time import Timing
from gpusage.predictors.work.adapters import with_adapters
from gpusage.predictors.work.checkpoints import Checkpoints
from gpusage_hooks.types import Gpu, Interval, MemoryInterval, ModelGraph, SoloRun, Workload

CACHED_ANALYSES = 3
"""About one graph."""
CACHED_GPU_LISTS = 3
"""In one analysis: a cluster's GPUs, their shares, and one more."""
NO_BLOCKS = (
    "The model has no repeated blocks to put checkpoints between: the prediction assumes that all of it is computed "
    "twice and that checkpoints save no memory."
)
_AnalysisKey = tuple[Pretrained, Workload]


class WorkloadAnalysis(StepWork):
    """A model that is run in one way; of its workload, what `_relevant_settings` leaves counts.

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
    ) -> None:
        super().__init__(_cache_of(graph).structures, workload, blocks)
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
        stages = [self, self.first_stage] if self.first_stage else [self]
        return max(stages, key=lambda stage: stage.stage_peak.required.value)

    @lazy
    def stage_peak(self) -> Peak:
        """What `peak` is where no other stage of a pipeline needs more."""
        if self.work_per_gpu:
            return generation_peak(self.pretrained.memory, self.graph, self.work_per_gpu, self.workload)
        learned, run = self.pretrained.memory, self.workload
        return tensor_peak(learned, self.graph, self.lowering, run, self.checkpoints, self.in_flight)

    @lazy
    def _warnings(self) -> tuple[str, ...]:
        warnings = extrapolation_warnings(self.pretrained.step_time_card, self.whole, self.lowering, self.workload)
        several = (NOT_MEASURED,) if self.workload.gpus > 1 else ()
        unblocked = (NO_BLOCKS,) if self.checkpoints and not self.checkpoints.has_blocks else ()
        return (*warnings, *unblocked, *several)

    def on(self, gpus: Sequence[Gpu]) -> GpuAnalysis:
        """Return what the workload needs on *gpus*, which are compared by identity and stay alive with the result."""
        return self._on_gpus.find(tuple(map(id, gpus)), lambda: GpuAnalysis(self, gpus))

    def timing(self, gpus: Sequence[Gpu]) -> Timing:
        """Return the seconds of one step on *gpus*, and what they are made of."""
        return self.on(gpus).timing

    def kernels_s(self, parts: Sequence[Gpu]) -> FloatArray:
        """Return `Timing.kernels_s` on *parts* of GPUs, to six digits: many of them take little time."""
        return self.on(parts).kernels_s

    def step_time_s(self, gpus: Sequence[Gpu]) -> list[Interval]:
        """Return the seconds of one step on each of *gpus*."""
        return self.on(gpus).step_time_s

    def memory_bytes(self, gpus: Sequence[Gpu]) -> list[Interval]:
        """Return the peak bytes of device memory that are taken on each of *gpus*, if it is free, context included."""
        taken = [with_context(self.peak, gpu.generation).taken for gpu in gpus]
        if not reserves_memory(self.workload):
            return taken
        each = zip(taken, gpus, strict=True)
        return [at_least(one, RESERVED_SHARE * gpu.memory_bytes) for one, gpu in each]

    def required_bytes(self, gpus: Sequence[Gpu]) -> list[MemoryInterval]:
        """Return the bytes of device memory that are needed on each of *gpus*, context included."""
        return [with_context(self.peak, gpu.generation).required for gpu in gpus]

    def activity(self, gpus: Sequence[Gpu]) -> list[Activity]:
        """Return how busy the workload keeps each of *gpus* when alone there."""
        return self.on(gpus).activity

    def warnings(self, gpus: Sequence[Gpu]) -> list[tuple[str, ...]]:
        """Return, for each of *gpus*, one sentence for each reason not to trust the figures as usual."""
        return [(*self._warnings, *of_gpu) for of_gpu in self.on(gpus).warnings]


class _GraphCache(NamedTuple):
    """What a graph caches."""

    structures: ModelStructures
    analyses: Newest[_AnalysisKey, WorkloadAnalysis]


def analyze(graph: ModelGraph, workload: Workload) -> WorkloadAnalysis:
    """Return what *workload* of *graph* needs, the same object as before while *graph* caches it."""
    return _cache_of(graph).analyses.find(
        (pretrained(), _relevant_settings(workload)), lambda: _analysis(graph, workload)
    )


def _analysis(graph: ModelGraph, workload: Workload) -> WorkloadAnalysis:
    if workload.lora is not None:
        graph = with_adapters(graph, workload.lora)
        workload = replace(workload, trainable=graph.trainable)
    if workload.pipeline == 1:
        return WorkloadAnalysis(graph, workload)
    undivided = WorkloadAnalysis(graph, Workload(batch_size=workload.batch_size)).lowering  # layers by shape alone
    first, last = stages_of(graph, undivided, workload.pipeline, workload.virtual_pipeline)
    of_first, of_last = micro_batches_in_flight(workload)
    of_nodes = np.where(last.blocks.recomputed_nodes, of_last, 1.0)  # the output's backward pass follows at once
    analysis = WorkloadAnalysis(last.graph, workload, last.blocks, of_nodes)
    analysis.first_stage = WorkloadAnalysis(first.graph, workload, first.blocks, of_first)
    analysis.whole = _cache_of(graph).structures.graph
    return analysis


def _relevant_settings(workload: Workload) -> Workload:
    """Return of *workload* what counts here; its shape is the graph's already."""
    return replace(workload, shape=(), steps=None, slo=None, slowdown=None, alone=SoloRun())


def _cache_of(graph: ModelGraph) -> _GraphCache:
    cache = graph.derived.get(__name__)
    if not isinstance(cache, _GraphCache):
        cache = graph.derived[__name__] = _GraphCache(ModelStructures(graph), Newest(CACHED_ANALYSES))
    return cache
