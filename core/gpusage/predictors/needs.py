"""What a workload needs from each GPU: one physical model; known figures replace its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpusage.devices.catalogue import CALIBRATED
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.extrapolation import ENGINE_WARNING, gpu_notes, workload_notes
from gpusage.predictors.known import apply_known_figures, implausible_step_time, throughput
from gpusage.predictors.parallel.division import several_gpu_notes
from gpusage.predictors.sharing.slowdown import busy_shares
from gpusage.predictors.times.step_time import engine_notes, reserved_share
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Gpu, GpuNeed, Interval, ModelGraph, ObservedFigures, Workload
from gpusage_hooks.units import KIB, MIB, seconds

# The note names a wait that takes at least this part of a token's time: fast and slow GPUs then write alike.
_MUCH = 0.2
_HOST_NOTE = f"{CALIBRATED}, hosts take {{:.2g}} times as long as usual to launch."


@hookimpl(trylast=True)
def predict_needs(
    graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], known: Sequence[ObservedFigures]
) -> Sequence[GpuNeed]:
    """Predict what a workload needs on each GPU when it is alone there."""
    # Few users know a step time; without one, a GPU works as the graph shows it.
    has_step_time = any(of_gpu.step_time_s for of_gpu in known)
    shares = busy_shares(graph, workload, gpus, known) if has_step_time else [None] * len(gpus)

    needs = []
    rows = zip(predicted(graph, workload, gpus), known, shares, gpus, strict=True)
    for predicted_need, of_gpu, share, gpu in rows:
        need = apply_known_figures(predicted_need, of_gpu, share, workload, gpu)
        notes = [] if workload.alone.gpu else [implausible_step_time(graph, workload, gpu)]

        # The site's host is named where it shows: neither beside a known step nor where the GPU hides it.
        if gpu.host_factor != 1.0 and (need.source == "step" or not of_gpu.step_time_s):
            (usual_s,) = analyze(graph, workload).step_time_s([replace(gpu, host_factor=1.0)])
            if round(predicted_need.step_time_s.value / usual_s.value, 2) != 1.0:
                notes.append(_HOST_NOTE.format(gpu.host_factor))
        needs.append(replace(need, notes=(*need.notes, *filter(None, notes))) if any(notes) else need)
    return needs


def predicted(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> list[GpuNeed]:
    """Return the needs that the model predicts, without any known figure."""
    analysis, always = analyze(graph, workload), (*graph.notes, *workload_notes(graph, workload))
    there = analysis.on(gpus)
    rows = zip(
        gpus,
        there.step_time_s,
        analysis.peaks(gpus),
        there.activity,
        analysis.warnings(gpus),
        _token_notes(analysis, gpus),
        there.waiting_s,
        strict=True,
    )

    needs = []
    for gpu, step_time_s, (taken, required), activity, warnings, notes, waits_s in rows:
        # A run shows no more than there is, unless it needs more and so cannot run.
        room = gpu.memory_bytes
        shown = Interval(
            value=taken.value if taken.value <= room else max(room, required.value),
            low=taken.low if taken.low <= room else max(room, required.low),
            high=taken.high if taken.high <= room else max(room, required.high),
        )
        need = GpuNeed(
            gpu=gpu.name,
            step_time_s=step_time_s,
            memory_bytes=shown,
            required_memory_bytes=Interval(value=required.value, low=required.low, high=required.high),
            share_high_bytes=required.share_high,
            gpu_utilization=activity.gpu_utilization,
            sm_activity=activity.sm_activity,
            dram_activity=activity.dram_activity,
            throughput_samples_per_s=throughput(workload, step_time_s),
            fits=required.high <= room,
            familiar={*warnings} <= {ENGINE_WARNING},  # its rules are fitted on published rates
            notes=(
                *always,
                *several_gpu_notes(workload, gpu, step_time_s.value, waits_s),
                *notes,
                *gpu_notes(gpu, workload.precision),
                *engine_notes(gpu, workload.engine),
                *warnings,
            ),
            parameter_count=graph.parameter_count,
            memory_share=reserved_share(workload) or None,
        )
        needs.append(need)
    return needs


def _token_notes(analysis: WorkloadAnalysis, gpus: Sequence[Gpu]) -> list[tuple[str, ...]]:
    """Return the notes on the tokens that a language model generates on each of *gpus*; else nothing."""
    decoding, there = analysis.decoding, analysis.on(gpus)
    if decoding is None:
        return [()] * len(gpus)

    token_kib = decoding.kv_cache_bytes / analysis.workload.batch_size / KIB
    prompt_mib = decoding.read_bytes / analysis.workload.batch_size / MIB
    cache = f"Keys and values take {token_kib:.0f} KiB for each token of each sample."
    if prompt_mib:  # which a decoder takes from an encoder
        cache = (
            f"Keys and values take {token_kib:.0f} KiB for each new token of each sample, and {prompt_mib:.1f} MiB for "
            "its prompt."
        )

    first, then = (one.step_s.tolist() for one in there.tokens)
    waiting = (there.tokens[1].step_s - there.tokens[1].busy_s).tolist()
    notes: list[tuple[str, ...]] = []
    for gpu, first_s, then_s, waiting_s in zip(gpus, first, then, waiting, strict=True):
        note = f"On {gpu.name} the first token takes {seconds(first_s)}, each further one {seconds(then_s)}"
        if waiting_s >= _MUCH * then_s:
            note += f", of which the GPU waits {seconds(waiting_s)} for the host to launch kernels"
        notes.append((f"{note}.", cache))
    return notes
