"""`gpusage predict --explain`: where the time and the memory of one step go, for people and as JSON.

A step time, a GPU utilization or a memory peak that a run showed stands beside the predicted one, with its source; the
rows below it stay those of the step as predicted from the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gpusage.cli import documents, tables
from gpusage.decisions.advisor import advisor
from gpusage.predictors.explanation import BOUNDS, NAMES, Explanation, Layer, MemoryPart, Seconds
from gpusage.predictors.known import NOTHING_KNOWN
from gpusage_hooks.types import Figure, Gpu, ModelGraph, ObservedFigures, Workload

SHOWN_LAYERS = 12
WAITING = "waiting for launches"
LEAST_S = 1e-30
"""In place of a step of no length, by which nothing can be divided."""
_TIMES = ("forward", "backward", "total", "share", "bound by")
CLASS_COLUMNS = tables.columns("operator class", "kernels", *_TIMES, optional=("kernels",))
LAYER_COLUMNS = tables.columns("layer", "times", "first node", *_TIMES, "kept", optional=("first node", "kept"))
MEMORY_COLUMNS = tables.columns("memory", "bytes", "share")


class MergedLayer(NamedTuple):
    """Layers whose main nodes are alike, as one: how many, the first of them, and their sums."""

    times: int
    first: Layer
    seconds: Seconds
    saved_bytes: float


def observed_figures(graph: ModelGraph, run: Workload, gpus: Sequence[Gpu]) -> list[ObservedFigures]:
    """Return the observed figures on each of *gpus*, and the GPU utilization that follows from a known step time."""
    observed = advisor().observed_figures(graph, run, gpus)
    if not any(one.step_time_s for one in observed):
        return [*observed]

    needs = advisor().predict(graph, run, gpus)
    return [
        one
        if one.step_time_s is None or one.gpu_utilization is not None
        else replace(one, gpu_utilization=Figure(interval=need.gpu_utilization, source=one.step_time_s.source))
        for one, need in zip(observed, needs, strict=True)
    ]


def show(explanation: Explanation) -> None:
    """Print where the time and the memory go."""
    verb = "is predicted to take" if explanation.known.step_time_s else "takes"
    title = f"On {explanation.gpu} a step {verb} {tables.seconds_text(explanation.step_time_s)}."
    tables.show(f"{title} {account(explanation)}\n")
    tables.show_filled(class_columns(explanation), list(class_rows(explanation)))

    layers = merge_layers(explanation.layers)
    count = f"{len(explanation.layers)} layers, {len(layers)} of them different"
    longest = f"; the {SHOWN_LAYERS} that take longest" if len(layers) > SHOWN_LAYERS else ""
    tables.show(f"\n{count}{longest}:\n")
    tables.show_filled(LAYER_COLUMNS, [layer_row(layer, explanation.step_time_s) for layer in layers[:SHOWN_LAYERS]])

    peak = f"{tables.size_text(memory_bytes(explanation))}{observed_memory(explanation.known)}"
    tables.show(f"\nAt its peak the memory holds {peak}:\n")
    tables.show_rows(MEMORY_COLUMNS, list(memory_rows(explanation)))
    tables.show("")


def account(explanation: Explanation) -> str:
    """Return which part of the step kernels, SMs and memory are busy, and what a host and other GPUs make of that."""
    step_s = max(explanation.step_time_s, LEAST_S)
    parts_s = (explanation.busy_s, explanation.sm_s, explanation.dram_s)
    of_step = [f"{100 * part_s / step_s:.0f} %" for part_s in parts_s]
    kernels, sms, memory = of_step
    text = f"Kernels run for {kernels} of it; SMs have work for {sms}; the memory is at its peak for {memory}."

    # A known utilization is of the real host, so the gaps of a usual one no longer matter.
    if known := observed_sentences(explanation):
        text = f"{text} {known}"
    else:
        of_both = [f"{100 * part_s / (step_s + explanation.gaps_s):.0f} %" for part_s in parts_s]
        if of_both != of_step:
            gaps = (
                f"A usual host leaves gaps of {tables.seconds_text(explanation.gaps_s)} between the kernels beside that"
            )
            together = f"of both together GPU busy, SM activity and DRAM activity are {', '.join(of_both)}"
            text = f"{text} {gaps}: {together}."

    if explanation.processes > 1:
        return f"{text} All this is of one of {explanation.processes} processes, as if it were alone."
    if not explanation.exchange_s:
        return text
    waiting = (
        f"each waits {tables.seconds_text(explanation.exchange_s)} for the others, while a kernel runs on few SMs."
    )
    return f"{text} All this is per GPU. In addition, {waiting}"


def observed_sentences(explanation: Explanation) -> str:
    """Return what was observed of the step, and how long the GPU then waits; empty where nothing was."""
    known = explanation.known
    if known.gpu_utilization is None:
        return ""

    source, busy = known.gpu_utilization.source, f"{100 * known.gpu_utilization.interval.value:.0f} %"
    waits_s = observed_wait_s(explanation)
    if known.step_time_s:
        step = tables.seconds_text(known.step_time_s.interval.value)
        waiting = f", so the GPU waits {tables.seconds_text(waits_s)} of it" if waits_s else ""
        of_step = f"The step time is known from {known.step_time_s.source}: {step}. GPU busy is then {busy}{waiting}."
        return f"{of_step} All else here is of the step as predicted."
    if waits_s:
        waiting = f"Beside the step as predicted the GPU then waits {tables.seconds_text(waits_s)}"
        return f"GPU busy is known from {source}: {busy}. {waiting}; no row here contains that."
    return f"GPU busy is known from {source}: {busy}. That is more than the step as predicted has here."


def observed_wait_s(explanation: Explanation) -> float:
    """Return how long the GPU waits: of a known step, or beside the predicted one by a known utilization; 0 or more."""
    known = explanation.known
    if known.gpu_utilization is None:
        return 0.0
    busy = known.gpu_utilization.interval.value
    if known.step_time_s:
        return (1.0 - busy) * known.step_time_s.interval.value

    # The whole step is the working time divided by the utilization; what the prediction does not have of it is waiting.
    working_s = explanation.busy_s + explanation.exchange_s
    return max(working_s / busy - explanation.step_time_s - explanation.exchange_s, 0.0)


def observed_memory(known: ObservedFigures) -> str:
    """Return the observed peak of the memory, to stand behind the predicted one; empty where there is none."""
    figure = known.memory_bytes
    return f" as predicted; known from {figure.source}: {tables.size_text(figure.interval.value)}" if figure else ""


def document(explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as JSON; shapes are of one sample, figures of one step."""
    times = ("step_time_s", "busy_s", "waiting_s", "gaps_s", "sm_s", "dram_s", "exchange_s")
    fields: dict[str, Any] = {name: documents.rounded(getattr(explanation, name)) for name in times}
    fields["processes"] = explanation.processes  # all is of one of them, as if it were alone
    if explanation.known != NOTHING_KNOWN:
        known = {
            name: {"value": documents.rounded(figure.interval.value), "source": figure.source}
            for name in ("step_time_s", "gpu_utilization", "memory_bytes")
            if (figure := getattr(explanation.known, name))
        }
        fields["known"] = {**known, "waiting_s": documents.rounded(observed_wait_s(explanation))}

    fields["classes"] = classes = []
    for part in explanation.classes:
        row = {"operator_class": part.name, "kernel_count": part.kernel_count, **_seconds(part.seconds)}
        if explanation.share_percents:
            slowdowns = map(documents.rounded, part.slowdowns)
            row["slowdowns"] = dict(zip(map(str, explanation.share_percents), slowdowns, strict=True))
        classes.append(row)

    fields["layers"] = [
        {
            "first_node": layer.first_node,
            "node_count": layer.node_count,
            "operator": layer.operator,
            "weight": list(layer.weight),
            "output": list(documents.sample_shape(layer.output)),
            **_seconds(layer.seconds),
            "parameter_bytes": round(layer.parameter_bytes),
            "kept_bytes": round(layer.saved_bytes),
        }
        for layer in explanation.layers
    ]
    fields["memory"] = [
        {
            "part": part.name,
            "operator_class": None if part.operator_class is None else NAMES[part.operator_class],
            "memory_bytes": round(part.memory_bytes),
        }
        for part in explanation.memory
    ]
    return fields


def _seconds(seconds: Seconds) -> dict[str, Any]:
    return {
        "forward_s": documents.rounded(seconds.forward_s),
        "backward_s": documents.rounded(seconds.backward_s),
        "other_s": documents.rounded(seconds.other_s),
        "bound": seconds.bound,
        **{
            f"{bound}_bound_s": documents.rounded(value_s)
            for bound, value_s in zip(BOUNDS, seconds.bound_s, strict=True)
        },
    }


def merge_layers(layers: Sequence[Layer]) -> list[MergedLayer]:
    """Return *layers* with equal ones merged, the longest first."""
    alike: dict[tuple[object, ...], list[Layer]] = {}
    for layer in layers:
        alike.setdefault((layer.operator, layer.weight, layer.output), []).append(layer)

    rows = []
    for group in alike.values():
        compute_s, bandwidth_s, launch_s = map(sum, zip(*(layer.seconds.bound_s for layer in group), strict=True))
        seconds = Seconds(
            forward_s=sum(layer.seconds.forward_s for layer in group),
            backward_s=sum(layer.seconds.backward_s for layer in group),
            other_s=sum(layer.seconds.other_s for layer in group),
            bound_s=(compute_s, bandwidth_s, launch_s),
        )
        rows.append(MergedLayer(len(group), group[0], seconds, sum(layer.saved_bytes for layer in group)))
    return sorted(rows, key=lambda row: -row.seconds.total_s)


def class_columns(explanation: Explanation) -> tuple[tables.Column, ...]:
    """Return `CLASS_COLUMNS`, and one for each share: how many times as long the class takes there."""
    return (*CLASS_COLUMNS, *(tables.Column(f"on {percent} %") for percent in explanation.share_percents))


def class_rows(explanation: Explanation) -> Iterator[tuple[str, ...]]:
    """Yield the cells of `class_columns`, and of the waiting between the kernels."""
    step_s, waiting_s = explanation.step_time_s, explanation.waiting_s
    for part in explanation.classes:
        slowdowns = (f"{slowdown:.2f}x" for slowdown in part.slowdowns)
        yield part.name, str(part.kernel_count), *_time_cells(part.seconds, step_s), *slowdowns
    on_shares = ("",) * len(explanation.share_percents)
    yield WAITING, "", "", "", _time(waiting_s), _share(waiting_s, step_s), "", *on_shares


def layer_row(layer: MergedLayer, step_s: float) -> tuple[str, ...]:
    """Return the cells of `LAYER_COLUMNS`."""
    saved_text = tables.size_text(layer.saved_bytes) if layer.saved_bytes else ""
    words = describe_layer(layer.first), str(layer.times), str(layer.first.first_node)
    return *words, *_time_cells(layer.seconds, step_s), saved_text


def memory_rows(explanation: Explanation) -> Iterator[tuple[str, ...]]:
    """Yield the cells of `MEMORY_COLUMNS`, the largest part first."""
    total = memory_bytes(explanation)
    for part in sorted(explanation.memory, key=lambda part: -part.memory_bytes):
        yield memory_label(part), tables.size_text(part.memory_bytes), _share(part.memory_bytes, total)


def memory_bytes(explanation: Explanation) -> float:
    """Return the sum of all parts of the memory."""
    return sum(part.memory_bytes for part in explanation.memory)


def memory_label(part: MemoryPart) -> str:
    """Return the name of a part, with its operator class."""
    return part.name if part.operator_class is None else f"{part.name}: {NAMES[part.operator_class]}"


def describe_layer(layer: Layer) -> str:
    """Return a layer in a few words, for example ``Conv 64x3x7x7 -> 64x112x112``."""
    weight = f" {_sizes(layer.weight)}" if layer.weight else ""
    return f"{layer.operator}{weight} -> {_sizes(documents.sample_shape(layer.output))}"


def _time_cells(seconds: Seconds, step_s: float) -> tuple[str, ...]:
    """Return the cells from the forward pass to the resource that holds the work up, with its part where not all."""
    percent = round(100 * max(seconds.bound_s) / max(seconds.total_s, LEAST_S))
    bound = seconds.bound if percent == 100 else f"{seconds.bound} {percent} %"
    times = _time(seconds.forward_s), _time(seconds.backward_s), _time(seconds.total_s)
    return *times, _share(seconds.total_s, step_s), bound


def _time(value_s: float) -> str:
    return tables.seconds_text(value_s) if value_s else ""


def _share(part: float, whole: float) -> str:
    return f"{100 * part / max(whole, LEAST_S):.1f} %"


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "1"
