"""What a workload needs from each GPU: one physical model; known figures replace its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpusage.predictors.familiarity import gpu_notes, workload_notes
from gpusage.predictors.known import disbelief, refined, throughput
from gpusage.predictors.question import Question, question_of
from gpusage.predictors.slowdown import working_shares
from gpusage.predictors.times.replicas import replica_notes
from gpusage.predictors.work.generation import Answer
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Gpu, GpuNeed, Interval, Known, ModelGraph, Workload
from gpusage_hooks.units import KIB, MIB, seconds

_MUCH = 0.2
"""The note names a wait that takes at least this part of a token's time: fast and slow GPUs then write alike."""


@hookimpl(trylast=True)
def predict_needs(
    graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], known: Sequence[Known]
) -> Sequence[GpuNeed]:
    """Predict what a workload needs on each GPU when it is alone there."""
    needs = predicted(graph, workload, gpus)
    shares = working_shares(graph, workload, gpus, known)
    rows = zip(needs, known, shares, gpus, strict=True)
    return [
        _noted(refined(need, of_gpu, share, workload, gpu), disbelief(graph, workload, gpu))
        for need, of_gpu, share, gpu in rows
    ]


def _noted(need: GpuNeed, note: str) -> GpuNeed:
    return replace(need, notes=(*need.notes, note)) if note else need


def predicted(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> list[GpuNeed]:
    """Return the needs that the model predicts, without any known figure."""
    question, always = question_of(graph, workload), (*graph.notes, *workload_notes(graph, workload))
    rows = zip(
        gpus,
        question.step_time_s(gpus),
        question.memory_bytes(gpus),
        question.activity(gpus),
        question.doubts(gpus),
        _token_notes(question, gpus),
        question.on(gpus).waiting_s,
        strict=True,
    )
    return [
        GpuNeed(
            gpu=gpu.name,
            step_time_s=step_time_s,
            memory_bytes=Interval(value=memory_bytes.value, low=memory_bytes.low, high=memory_bytes.high),
            share_high_bytes=memory_bytes.share_high,
            gpu_utilization=activity.gpu_utilization,
            sm_activity=activity.sm_activity,
            dram_activity=activity.dram_activity,
            throughput_samples_per_s=throughput(workload, step_time_s),
            fits=memory_bytes.high <= gpu.memory_bytes,
            familiar=not doubts,
            notes=(
                *always,
                *replica_notes(workload, gpu, step_time_s.value, waits_s),
                *notes,
                *gpu_notes(gpu, workload.precision),
                *doubts,
            ),
            parameter_count=graph.parameter_count,
        )
        for gpu, step_time_s, memory_bytes, activity, doubts, notes, waits_s in rows
    ]


def _token_notes(question: Question, gpus: Sequence[Gpu]) -> list[tuple[str, ...]]:
    """Return what is to be said of the tokens that a language model writes on each of *gpus*; else nothing."""
    answer, there = question.answer, question.on(gpus)
    if answer is None:
        return [()] * len(gpus)
    cache = _cache_note(answer, question.workload.batch_size)
    first, then = (one.step_s.tolist() for one in there.tokens)
    waiting = (there.tokens[1].step_s - there.tokens[1].busy_s).tolist()
    rows = zip(gpus, first, then, waiting, strict=True)
    return [(_token_note(gpu, *times), cache) for gpu, *times in rows]


def _token_note(gpu: Gpu, first_s: float, then_s: float, waiting_s: float) -> str:
    """Return how long tokens take on *gpu*, and what of it no faster GPU would save."""
    note = f"On {gpu.name} the first token takes {seconds(first_s)}, each further one {seconds(then_s)}"
    if waiting_s < _MUCH * then_s:
        return f"{note}."
    return f"{note}, of which the GPU waits {seconds(waiting_s)} for the host to launch kernels."


def _cache_note(answer: Answer, batch_size: int) -> str:
    kept_kib, read_mib = answer.cached_bytes / batch_size / KIB, answer.read_bytes / batch_size / MIB
    kept = f"Keys and values take {kept_kib:.0f} KiB for each"
    return (
        f"{kept} new token of each sample, and {read_mib:.1f} MiB for its prompt."
        if read_mib
        else f"{kept} token of each sample."
    )
