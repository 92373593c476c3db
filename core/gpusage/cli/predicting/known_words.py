"""What `gpusage predict --explain` says of a figure that is known, beside the step as predicted from the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpusage.cli import documents, figures
from gpusage.decisions.advisor import advisor
from gpusage.predictors.explanation import Explanation
from gpusage.predictors.known import NOTHING_KNOWN
from gpusage_hooks.types import Figure, Gpu, GpuNeed, ModelGraph, ObservedFigures, Workload


def known_of(graph: ModelGraph, run: Workload, gpus: Sequence[Gpu]) -> list[ObservedFigures]:
    """Return what is known of each of *gpus*, and the GPU utilization that follows from a known step time."""
    known = advisor().observed_figures(graph, run, gpus)
    needs = advisor().predict(graph, run, gpus) if any(one.step_time_s for one in known) else ()
    return [_with_utilization(one, need) for one, need in zip(known, needs, strict=True)] if needs else [*known]


def _with_utilization(known: ObservedFigures, need: GpuNeed) -> ObservedFigures:
    if known.step_time_s is None or known.gpu_utilization is not None:
        return known
    return replace(known, gpu_utilization=Figure(interval=need.gpu_utilization, source=known.step_time_s.source))


def sentences(explanation: Explanation) -> str:
    """Return what is known of the step and what the GPU then waits; empty where nothing is."""
    known = explanation.known
    if known.gpu_utilization is None:
        return ""
    source, busy = known.gpu_utilization.source, f"{100 * known.gpu_utilization.interval.value:.0f} %"
    waits_s = known_wait_s(explanation)
    if known.step_time_s:
        step = figures.seconds(known.step_time_s.interval.value)
        waiting = f", so the GPU waits {figures.seconds(waits_s)} of it" if waits_s else ""
        of_step = f"The step time is known from {known.step_time_s.source}: {step}. GPU busy is then {busy}{waiting}."
        return f"{of_step} All else here is of the step as predicted."
    if waits_s:
        waiting = f"Beside the step as predicted the GPU then waits {figures.seconds(waits_s)}"
        return f"GPU busy is known from {source}: {busy}. {waiting}; no row here contains that."
    return f"GPU busy is known from {source}: {busy}. That is more than the step as predicted has here."


def known_wait_s(explanation: Explanation) -> float:
    """Return what the GPU waits: of a known step, or beside the predicted one by a known utilization; 0 or more."""
    known = explanation.known
    if known.gpu_utilization is None:
        return 0.0
    busy = known.gpu_utilization.interval.value
    if known.step_time_s:
        return (1.0 - busy) * known.step_time_s.interval.value
    predicted_s, works_s = explanation.step_time_s, explanation.busy_s
    return max((works_s + explanation.exchange_s) / busy - predicted_s - explanation.exchange_s, 0.0)


def of_memory(known: ObservedFigures) -> str:
    """Return a known peak of the memory, beside the predicted one; empty where there is none."""
    figure = known.memory_bytes
    return f" as predicted; known from {figure.source}: {figures.size(figure.interval.value)}" if figure else ""


def document(explanation: Explanation) -> dict[str, Any]:
    """Return the known figures as JSON, each with its source; nothing where nothing is known."""
    known = explanation.known
    if known == NOTHING_KNOWN:
        return {}
    of_each = {
        "step_time_s": known.step_time_s,
        "gpu_utilization": known.gpu_utilization,
        "memory_bytes": known.memory_bytes,
    }
    rows = {
        name: {"value": documents.rounded(figure.interval.value), "source": figure.source}
        for name, figure in of_each.items()
        if figure
    }
    return {"known": {**rows, "waiting_s": documents.rounded(known_wait_s(explanation))}}
