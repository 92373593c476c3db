"""What `gpusage predict --explain` shows of one prediction: tables for people, and a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gpusage.cli import documents, figures, tables
from gpusage.cli.predicting import known_words
from gpusage.predictors.explanation import BOUNDS, NAMES, ClassPart, Explanation, Layer, MemoryPart, Seconds

SHOWN_LAYERS = 12
WAITING = "waiting for launches"
CLASS_COLUMNS = (
    tables.Column("operator class", is_left=True),
    tables.Column("kernels", is_optional=True),
    tables.Column("forward"),
    tables.Column("backward"),
    tables.Column("total"),
    tables.Column("share"),
    tables.Column("bound by"),
)
LAYER_COLUMNS = (
    tables.Column("layer", is_left=True),
    tables.Column("times"),
    tables.Column("first node", is_optional=True),
    tables.Column("forward"),
    tables.Column("backward"),
    tables.Column("total"),
    tables.Column("share"),
    tables.Column("bound by"),
    tables.Column("kept", is_optional=True),
)
MEMORY_COLUMNS = (tables.Column("memory", is_left=True), tables.Column("bytes"), tables.Column("share"))


def show(explanation: Explanation) -> None:
    """Print where the time and the memory go."""
    verb = "is predicted to take" if explanation.known.step_time_s else "takes"
    title = f"On {explanation.gpu} a step {verb} {figures.seconds(explanation.step_time_s)}."
    tables.show(f"{title} {account(explanation)}\n")
    tables.show_filled(class_columns(explanation), list(class_rows(explanation)))
    layers = merge_layers(explanation.layers)
    tables.show(f"\n{_layers_title(len(explanation.layers), len(layers))}\n")
    tables.show_filled(LAYER_COLUMNS, [layer_row(layer, explanation.step_time_s) for layer in layers[:SHOWN_LAYERS]])
    peak = f"{figures.size(memory_bytes(explanation))}{known_words.of_memory(explanation.known)}"
    tables.show(f"\nAt its peak the memory holds {peak}:\n")
    tables.show_rows(MEMORY_COLUMNS, list(memory_rows(explanation)))
    tables.show("")


def account(explanation: Explanation) -> str:
    """Return what part of the step kernels, SMs and memory are busy, and what a host and other GPUs make of that."""
    if not explanation.exchange_s:
        return _account_of_one(explanation)
    exchange = figures.seconds(explanation.exchange_s)
    waiting = f"All this is per GPU. In addition, each waits {exchange} for the others, while a kernel runs on few SMs."
    return f"{_account_of_one(explanation)} {waiting}"


def _account_of_one(explanation: Explanation) -> str:
    step_s = max(explanation.step_time_s, 1e-30)
    parts_s = (explanation.busy_s, explanation.sm_s, explanation.dram_s)
    of_step = [f"{100 * part_s / step_s:.0f} %" for part_s in parts_s]
    kernels, sms, memory = of_step
    text = f"Kernels run for {kernels} of it; SMs have work for {sms}; the memory is at its peak for {memory}."
    if known := known_words.sentences(explanation):
        return f"{text} {known}"
    of_both = [f"{100 * part_s / (step_s + explanation.gaps_s):.0f} %" for part_s in parts_s]
    if of_both == of_step:
        return text
    gaps = f"A usual host leaves gaps of {figures.seconds(explanation.gaps_s)} between the kernels beside that"
    return f"{text} {gaps}: of both together GPU busy, SM activity and DRAM activity are {', '.join(of_both)}."


def document(explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as JSON; shapes are of one sample, figures of one step."""
    return {
        "step_time_s": documents.rounded(explanation.step_time_s),
        "busy_s": documents.rounded(explanation.busy_s),
        "waiting_s": documents.rounded(explanation.waiting_s),
        "gaps_s": documents.rounded(explanation.gaps_s),
        "sm_s": documents.rounded(explanation.sm_s),
        "dram_s": documents.rounded(explanation.dram_s),
        "exchange_s": documents.rounded(explanation.exchange_s),
        **known_words.document(explanation),
        "classes": [
            {
                "operator_class": part.name,
                "kernel_count": part.kernel_count,
                **_seconds(part.seconds),
                **_slowdowns(part, explanation),
            }
            for part in explanation.classes
        ],
        "layers": [
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
        ],
        "memory": [
            {
                "part": part.name,
                "operator_class": None if part.operator_class is None else NAMES[part.operator_class],
                "memory_bytes": round(part.memory_bytes),
            }
            for part in explanation.memory
        ],
    }


def _slowdowns(part: ClassPart, explanation: Explanation) -> dict[str, Any]:
    """Return how many times as long *part* takes by share; nothing where no share is asked for."""
    by_share = zip(map(str, explanation.share_percents), map(documents.rounded, part.slowdowns), strict=True)
    return {"slowdowns": dict(by_share)} if explanation.share_percents else {}


def _seconds(seconds: Seconds) -> dict[str, Any]:
    held = {
        f"{bound}_bound_s": documents.rounded(held_s) for bound, held_s in zip(BOUNDS, seconds.bound_s, strict=True)
    }
    return {
        "forward_s": documents.rounded(seconds.forward_s),
        "backward_s": documents.rounded(seconds.backward_s),
        "other_s": documents.rounded(seconds.other_s),
        "bound": seconds.bound,
        **held,
    }


class MergedLayer(NamedTuple):
    """Layers whose main nodes are alike, as one: how many, the first of them, and what they take together."""

    times: int
    first: Layer
    seconds: Seconds
    saved_bytes: float


def merge_layers(layers: Sequence[Layer]) -> list[MergedLayer]:
    """Return layers with those alike put together, what takes longest first."""
    alike: dict[tuple[object, ...], list[Layer]] = {}
    for layer in layers:
        alike.setdefault((layer.operator, layer.weight, layer.output), []).append(layer)
    rows = [
        MergedLayer(
            len(group), group[0], _sum([layer.seconds for layer in group]), sum(layer.saved_bytes for layer in group)
        )
        for group in alike.values()
    ]
    return sorted(rows, key=lambda one: -one.seconds.total_s)


def _sum(all_seconds: Sequence[Seconds]) -> Seconds:
    compute_s, bandwidth_s, launch_s = map(sum, zip(*(one.bound_s for one in all_seconds), strict=True))
    return Seconds(
        forward_s=sum(one.forward_s for one in all_seconds),
        backward_s=sum(one.backward_s for one in all_seconds),
        other_s=sum(one.other_s for one in all_seconds),
        bound_s=(compute_s, bandwidth_s, launch_s),
    )


def class_columns(explanation: Explanation) -> tuple[tables.Column, ...]:
    """Return `CLASS_COLUMNS`, and one for each share: how many times as long the class takes there."""
    return (*CLASS_COLUMNS, *(tables.Column(f"on {percent} %") for percent in explanation.share_percents))


def class_rows(explanation: Explanation) -> Iterator[tuple[str, ...]]:
    """Yield the cells of `class_columns`, and of what the step takes beside the kernels."""
    step_s, waiting_s = explanation.step_time_s, explanation.waiting_s
    for part in explanation.classes:
        slowdowns = (f"{slowdown:.2f}x" for slowdown in part.slowdowns)
        yield part.name, str(part.kernel_count), *_cells(part.seconds, step_s), bound(part.seconds), *slowdowns
    on_shares = ("",) * len(explanation.share_percents)
    yield WAITING, "", "", "", _time(waiting_s), _share(waiting_s, step_s), "", *on_shares


def layer_row(layer: MergedLayer, step_s: float) -> tuple[str, ...]:
    """Return the cells of `LAYER_COLUMNS`."""
    words = describe_layer(layer.first), str(layer.times), str(layer.first.first_node)
    saved_text = figures.size(layer.saved_bytes) if layer.saved_bytes else ""
    return *words, *_cells(layer.seconds, step_s), bound(layer.seconds), saved_text


def memory_rows(explanation: Explanation) -> Iterator[tuple[str, ...]]:
    """Yield the cells of `MEMORY_COLUMNS`, the largest part first."""
    total = memory_bytes(explanation)
    for part in sorted(explanation.memory, key=lambda one: -one.memory_bytes):
        yield memory_label(part), figures.size(part.memory_bytes), _share(part.memory_bytes, total)


def memory_bytes(explanation: Explanation) -> float:
    """Return what the parts add up to."""
    return sum(part.memory_bytes for part in explanation.memory)


def memory_label(part: MemoryPart) -> str:
    """Return whose bytes they are."""
    return part.name if part.operator_class is None else f"{part.name}: {NAMES[part.operator_class]}"


def describe_layer(layer: Layer) -> str:
    """Return a layer in a few words, for example ``Conv 64x3x7x7 -> 64x112x112``."""
    weight = f" {_sizes(layer.weight)}" if layer.weight else ""
    return f"{layer.operator}{weight} -> {_sizes(documents.sample_shape(layer.output))}"


def bound(seconds: Seconds) -> str:
    """Return what holds the work up, with the share of its time where that is not all."""
    percent = round(100 * max(seconds.bound_s) / max(seconds.total_s, 1e-30))
    return seconds.bound if percent == 100 else f"{seconds.bound} {percent} %"  # all


def _cells(seconds: Seconds, step_s: float) -> tuple[str, str, str, str]:
    return _time(seconds.forward_s), _time(seconds.backward_s), _time(seconds.total_s), _share(seconds.total_s, step_s)


def _time(value_s: float) -> str:
    return figures.seconds(value_s) if value_s else ""


def _share(part: float, whole: float) -> str:
    return f"{100 * part / max(whole, 1e-30):.1f} %"


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "1"


def _layers_title(count: int, different: int) -> str:
    words = f"{count} layers, {different} of them different"
    return f"{words}; the {SHOWN_LAYERS} that take longest:" if different > SHOWN_LAYERS else f"{words}:"
