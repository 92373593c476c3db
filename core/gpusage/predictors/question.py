"""What one model needs when it is run in one way: one object per question, with named parts.

A part is worked out when it is first asked for, and kept as long as the question. A graph keeps the newest questions
about it (`gpusage_hooks.types.ModelGraph.derived`), so that whoever keeps the graph decides how long that is: gpusaged
keeps a bounded weight of graphs, and forgets what it worked out for a graph with the graph.

Invariants:

1. What depends on GPUs is worked out for all of them at once.
2. Nothing that a graph keeps refers to that graph: it is freed when its owner lets go of it, without the collector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gpusage.precisions import AUTOCAST, FLOAT_BYTES
from gpusage.predictors.activity.activities import Activity, activities, gaps_of, while_waiting
from gpusage.predictors.activity.features import Work, work_of
from gpusage.predictors.familiarity import gpu_doubts, workload_doubts
from gpusage.predictors.identity import Newest
from gpusage.predictors.lazy import lazy
from gpusage.predictors.learned.arrays import FloatArray
from gpusage.predictors.learned.artifacts import Pretrained, pretrained
from gpusage.predictors.memory.peak import answer_bytes, tensor_bytes, with_context
from gpusage.predictors.times.compiled import compiled
from gpusage.predictors.times.efficiency import Efficiency, efficiency_of
from gpusage.predictors.times.replicas import NO_GRADIENTS, NOT_MEASURED, gradients_of, of_replicas, waiting_s
from gpusage.predictors.times.step_time import step_times_s
from gpusage.predictors.times.streaming import streaming
from gpusage.predictors.times.timing import Timing, in_turn, kernels_on, timing_with
from gpusage.predictors.work.autocast import widened
from gpusage.predictors.work.checkpoints import Checkpoints, checkpoints_of
from gpusage.predictors.work.fusion import fused, is_fused
from gpusage.predictors.work.generation import Answer, answer_of
from gpusage.predictors.work.kernels import Kernels, kernels_of
from gpusage.predictors.work.lowering import Lowering, lower
from gpusage.predictors.work.structure import Structure, structure_of
from gpusage_hooks.types import Alone, Gpu, Interval, MemoryInterval, ModelGraph, Workload

KEPT_QUESTIONS = 3
"""About one graph."""
KEPT_GPU_LISTS = 3
"""In one question: a cluster's GPUs, their shares, and one more."""
NO_BLOCKS = (
    "The model has no repeated blocks that checkpoints could stand between: all of it is taken to be computed twice, "
    "and no less to be kept."
)
_Run = tuple[Pretrained, Workload]


class OnGpus:
    """What a workload needs on some GPUs, one entry per GPU; worked out when it is first asked for.

    Attributes:
        gpus: Which they are.
        kernels: Of the workload, as are *work* and *graph*.
        answer: What a language model takes to write; none where the workload is a plain pass.
        passes: The kernels of its two passes; none without.
    """

    def __init__(self, question: Question, gpus: Sequence[Gpu]) -> None:
        self.gpus = tuple(gpus)
        self.graph = question.graph
        self.workload = question.workload
        self.kernels = question.kernels
        self.answer = question.answer
        self.passes = question.passes
        self.work = question.work
        is_one = question.workload.gpus == 1
        self.gradients = NO_GRADIENTS if is_one else gradients_of(question.lowering, question.workload)
        self.efficiency = question.efficiency
        self.pretrained = question.pretrained

    @lazy
    def timing(self) -> Timing:
        """Seconds of one step, and what they are made of."""
        whole = self._timing_of(self.kernels)
        if self.answer is None:
            return whole
        first, then = self.tokens
        return in_turn(whole, first, then, self.answer.token_count)

    @lazy
    def tokens(self) -> tuple[Timing, ...]:
        """What the first token of an answer takes, and what each further one; nothing where there is no answer."""
        return tuple(map(self._timing_of, self.passes))

    def _timing_of(self, kernels: Kernels) -> Timing:
        return timing_with(self.efficiency, kernels, self.gpus, self.workload.precision)

    @lazy
    def kernels_s(self) -> FloatArray:
        """`Timing.kernels_s` to six digits: of many GPUs in little time."""
        return kernels_on(self.efficiency, self.kernels, self.gpus, self.workload.precision)

    @lazy
    def step_time_s(self) -> list[Interval]:
        """Seconds of one step."""
        of_one = step_times_s(self.efficiency, self.graph, self.workload, self.gpus, self.timing)
        each = zip(of_one, self.gpus, strict=True)
        return [of_replicas(step_time_s, self.workload, gpu, self.gradients) for step_time_s, gpu in each]

    @lazy
    def waiting_s(self) -> list[float]:
        """Seconds of a step in which each GPU waits for the gradients of others."""
        if self.workload.gpus == 1:
            return [0.0] * len(self.gpus)
        each = zip(self.timing.step_s.tolist(), self.gpus, strict=True)
        return [waiting_s(self.gradients, step_s, self.workload, gpu) for step_s, gpu in each]

    @lazy
    def activity(self) -> list[Activity]:
        """How busy the workload keeps each GPU when alone there."""
        gaps_s = gaps_of(self.pretrained.activity, self.workload.mode, float(self.kernels.counts.sum()))
        alone = activities(self.pretrained.activity, self.graph, self.work, self.timing, gaps_s)
        each = zip(alone, self.timing.step_s.tolist(), self.waiting_s, strict=True)
        return [while_waiting(activity, step_s, waits_s) for activity, step_s, waits_s in each]

    @lazy
    def doubts(self) -> list[tuple[str, ...]]:
        """One sentence for each reason not to trust figures on this GPU as usual."""
        return gpu_doubts(self.pretrained.step_time_card, self.gpus)


class Question:
    """A model that is run in one way.

    Attributes:
        graph: The model.
        workload: What `_run_of` leaves of it counts.
        pretrained: The artifacts that answer.
    """

    def __init__(self, graph: ModelGraph, workload: Workload) -> None:
        self._structures = _known(graph).structures
        self.graph = self._structures.graph
        self.workload = workload
        self.pretrained = pretrained()
        self._on_gpus: Newest[tuple[int, ...], OnGpus] = Newest(KEPT_GPU_LISTS)

    @lazy
    def efficiency(self) -> Efficiency:
        """How much of its peak each class of operator reaches."""
        efficiency = efficiency_of(self.pretrained.step_time)
        if self.workload.generate:
            return streaming(efficiency)
        return compiled(efficiency) if is_fused(self.workload) else efficiency

    @property
    def lowering(self) -> Lowering:
        """The work of each kind of node; of an answer, in the pass over the prompt."""
        return self.answer.prompt if self.answer else self._whole

    @lazy
    def executed(self) -> Lowering:
        """The work as kernels do it, which a compiler may have fused."""
        return fused(self.lowering) if is_fused(self.workload) else self.lowering

    @lazy
    def _whole(self) -> Lowering:
        """The work of each kind of node, at the sizes that the graph has; no GPU changes it."""
        is_cast = self.workload.precision in AUTOCAST and self.workload.generate is None
        structure = self._structures.widened if is_cast else self._structures.plain
        return lower(self.graph, structure, self.workload)

    @lazy
    def answer(self) -> Answer | None:
        """What a language model takes to write; none where the workload is a plain pass."""
        generation, run = self.workload.generate, self.workload
        if generation is None:
            return None
        return answer_of(self.graph, self._whole, generation, run.batch_size, FLOAT_BYTES[run.precision])

    @lazy
    def checkpoints(self) -> Checkpoints | None:
        """Where blocks are computed once more; none where the workload has no checkpoints."""
        return checkpoints_of(self.lowering) if self.workload.checkpointing else None

    @lazy
    def kernels(self) -> Kernels:
        """The kernels of one step; no GPU changes them."""
        if self.answer:
            return self.answer.kernels(*self.passes)
        return kernels_of(self.executed, self.workload, self.checkpoints)

    @lazy
    def passes(self) -> tuple[Kernels, ...]:
        """The kernels of the pass over the prompt, and of that over a token; nothing where there is no answer."""
        return tuple(kernels_of(one.lowering, self.workload) for one in self.answer.passes()) if self.answer else ()

    @lazy
    def work(self) -> Work:
        """The features of the activity that are the same on every GPU."""
        return work_of(self.graph, self.lowering, self.workload.batch_size, self.answer)

    @lazy
    def tensor_bytes(self) -> MemoryInterval:
        """Peak bytes beside the CUDA context."""
        if self.answer:
            return answer_bytes(self.graph, self.answer, self.workload)
        return tensor_bytes(self.pretrained.memory, self.graph, self.lowering, self.workload, self.checkpoints)

    @lazy
    def _doubts(self) -> tuple[str, ...]:
        doubts = workload_doubts(self.pretrained.step_time_card, self.graph, self.lowering, self.workload)
        several = (NOT_MEASURED,) if self.workload.gpus > 1 else ()
        unblocked = (NO_BLOCKS,) if self.checkpoints and not self.checkpoints.is_found else ()
        return (*doubts, *unblocked, *several)

    def on(self, gpus: Sequence[Gpu]) -> OnGpus:
        """Return what the workload needs on *gpus*, which are told apart by identity and kept alive with the answer."""
        return self._on_gpus.find(tuple(map(id, gpus)), lambda: OnGpus(self, gpus))

    def timing(self, gpus: Sequence[Gpu]) -> Timing:
        """Return the seconds of one step on *gpus*, and what they are made of."""
        return self.on(gpus).timing

    def kernels_s(self, parts: Sequence[Gpu]) -> FloatArray:
        """Return `Timing.kernels_s` on *parts* of GPUs, to six digits: many of them take little time."""
        return self.on(parts).kernels_s

    def step_time_s(self, gpus: Sequence[Gpu]) -> list[Interval]:
        """Return the seconds of one step on each of *gpus*."""
        return self.on(gpus).step_time_s

    def memory_bytes(self, gpus: Sequence[Gpu]) -> list[MemoryInterval]:
        """Return the peak bytes of device memory on each of *gpus*, context included."""
        needs = {generation: with_context(self.tensor_bytes, generation) for generation in {g.generation for g in gpus}}
        return [needs[gpu.generation] for gpu in gpus]

    def activity(self, gpus: Sequence[Gpu]) -> list[Activity]:
        """Return how busy the workload keeps each of *gpus* when alone there."""
        return self.on(gpus).activity

    def doubts(self, gpus: Sequence[Gpu]) -> list[tuple[str, ...]]:
        """Return, for each of *gpus*, one sentence for each reason not to trust the figures as usual."""
        return [(*self._doubts, *of_gpu) for of_gpu in self.on(gpus).doubts]


class Structures:
    """What of a model no workload changes.

    Attributes:
        graph: A copy, which keeps nothing: invariant 2.
    """

    def __init__(self, graph: ModelGraph) -> None:
        self.graph = replace(graph)

    @lazy
    def plain(self) -> Structure:
        """The structure where every float has 4 bytes."""
        return structure_of(self.graph)

    @lazy
    def widened(self) -> Structure:
        """The structure under automatic mixed precision."""
        return widened(self.graph, self.plain)


class _Known(NamedTuple):
    """What a graph keeps."""

    structures: Structures
    questions: Newest[_Run, Question]


def question_of(graph: ModelGraph, workload: Workload) -> Question:
    """Return what *workload* of *graph* needs, the same object as before while *graph* keeps it."""
    return _known(graph).questions.find((pretrained(), _run_of(workload)), lambda: Question(graph, workload))


def _run_of(workload: Workload) -> Workload:
    """Return of *workload* what counts here; its shape is the graph's already."""
    return replace(workload, shape=(), steps=None, slo=None, slowdown=None, alone=Alone())


def _known(graph: ModelGraph) -> _Known:
    known = graph.derived.get(__name__)
    if not isinstance(known, _Known):
        known = graph.derived[__name__] = _Known(Structures(graph), Newest(KEPT_QUESTIONS))
    return known
