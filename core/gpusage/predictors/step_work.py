"""What one model computes, sends and launches in a step when it is run in one way; no GPU changes it.

Each part is computed on first use; `ModelStructures` has the parts that no workload changes either.
"""

from __future__ import annotations

from dataclasses import replace

from gpusage.caches import lazy
from gpusage.devices.precisions import FLOAT_BYTES
from gpusage.predictors.artifacts import pretrained
from gpusage.predictors.parallel.decoding import DividedDecoding, divide_decoding
from gpusage.predictors.parallel.division import Division, divide
from gpusage.predictors.times.activity import Work, work_of
from gpusage.predictors.times.efficiency import (
    Efficiency,
    efficiency_of,
    with_bounded_gradients,
    with_compiler,
    with_streaming_limits,
)
from gpusage.predictors.times.kernels import Kernels, answer_kernels, kernels_of
from gpusage.predictors.times.step_time import cache_bytes, engine_of, replays_graph, with_engine
from gpusage.predictors.work.checkpoints import Checkpoints, checkpoints_of
from gpusage.predictors.work.decoding import CacheSizes, DecodingWork, decoding_work
from gpusage.predictors.work.lowering import Lowering, fused, is_autocast, is_fused, is_fusion_measured, lower
from gpusage.predictors.work.sequences import SequenceModel, sequence_model
from gpusage.predictors.work.structure import Structure, analyze_structure, with_autocast
from gpusage_hooks.types import ModelGraph, Workload


class ModelStructures:
    """The structure of a model, which no workload changes.

    Attributes:
        graph: A copy, so that the graph that caches this is freed when its owner drops it.
    """

    def __init__(self, graph: ModelGraph) -> None:
        self.graph = replace(graph)

    @lazy
    def plain(self) -> Structure:
        """The structure where every float has 4 bytes."""
        return analyze_structure(self.graph)

    @lazy
    def with_autocast(self) -> Structure:
        """The structure under automatic mixed precision."""
        return with_autocast(self.graph, self.plain)

    @lazy
    def sequences(self) -> SequenceModel:
        """Its attentions, and how long the sequences are that it was read with.

        Raises:
            GraphError: The model does not write on what it reads.
        """
        return sequence_model(self.graph)


class StepWork:
    """The work of one model in a step.

    Attributes:
        graph: The model, or the stage of a pipeline.
        workload: How it is run.
        pretrained: The artifacts that answer.
        has_narrow_cache: Whether a number in the cache of keys and values has 1 byte, whatever the precision; training
            and stages of a pipeline have no such cache.
    """

    def __init__(self, structures: ModelStructures, workload: Workload, blocks: Checkpoints | None = None) -> None:
        self._structures = structures
        self.graph = structures.graph
        self.workload = workload
        self._blocks = blocks
        self.pretrained = pretrained()
        self.has_narrow_cache = False

    @lazy
    def efficiency(self) -> Efficiency:
        """How much of its peak each class of operator reaches."""
        efficiency = efficiency_of(self.pretrained.step_time)

        # What was learned is of eager PyTorch; each other way to run has its own rule, and they exclude each other.
        if replays_graph(self.workload):
            return with_engine(efficiency, engine_of(self.workload))
        if self.workload.generate:
            return with_streaming_limits(efficiency)
        if self.workload.mode == "train":
            return with_bounded_gradients(efficiency)
        return with_compiler(efficiency) if is_fusion_measured(self.workload) else efficiency

    @property
    def lowering(self) -> Lowering:
        """The work of each kind of node; where the workload generates, of the prefill."""
        return self.decoding.prompt if self.decoding else self.division.lowering

    @lazy
    def executed(self) -> Lowering:
        """The work as kernels do it, which a compiler may have fused."""
        return self._executed(self.lowering)

    def _executed(self, lowering: Lowering) -> Lowering:
        return fused(lowering) if is_fused(self.workload) or replays_graph(self.workload) else lowering

    @lazy
    def division(self) -> Division:
        """What each of several GPUs computes and sends in training; on one GPU, all of the work."""
        structure = self._structures.with_autocast if is_autocast(self.workload) else self._structures.plain
        return divide(self.graph, lower(self.graph, structure, self.workload), self.workload)

    @lazy
    def divided_decoding(self) -> DividedDecoding | None:
        """What a language model takes to write on each GPU; none where the workload is a plain pass."""
        decoding, run = self.workload.generate, self.workload
        if decoding is None:
            return None
        float_bytes = 1 if self.has_narrow_cache else cache_bytes(run, FLOAT_BYTES[run.precision])
        cache = CacheSizes(float_bytes, is_fused=replays_graph(run))
        sequences = self._structures.sequences
        work = decoding_work(self.graph, sequences, self.division.lowering, decoding, run.batch_size, cache)
        return divide_decoding(work, self.graph, sequences, run)

    @property
    def decoding(self) -> DecodingWork | None:
        """The passes of `divided_decoding` that take a GPU's time."""
        return self.divided_decoding and self.divided_decoding.work

    @lazy
    def checkpoints(self) -> Checkpoints | None:
        """Where blocks are computed once more; none where the workload has no checkpoints."""
        return (self._blocks or checkpoints_of(self.lowering)) if self.workload.checkpointing else None

    @lazy
    def kernels(self) -> Kernels:
        """The kernels of one step; no GPU changes them."""
        if self.decoding:
            return answer_kernels(self.passes, self.decoding.decode_count)
        return kernels_of(self.executed, self.workload, self.checkpoints)

    @lazy
    def kernels_of_passes(self) -> Kernels:
        """The kernels of a step but for its update, before which the stages of a pipeline wait; without one, all."""
        if self.workload.pipeline == 1:
            return self.kernels
        return kernels_of(self.executed, replace(self.workload, optimizer="none"), self.checkpoints)

    @lazy
    def passes(self) -> tuple[Kernels, ...]:
        """The kernels of the pass over the prompt, and of that over a token; nothing where there is no answer."""
        if self.decoding is None:
            return ()
        return tuple([kernels_of(self._executed(one.lowering), self.workload) for one in self.decoding.passes()])

    @lazy
    def work(self) -> Work:
        """The features of the activity that are the same on every GPU."""
        return work_of(self.graph, self.lowering, self.workload.batch_size, self.decoding)
