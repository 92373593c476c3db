"""The page of `gpusage predict -o`: what shares of each GPU cost, and where time and memory go, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gpusage.cli import explain, figures
from gpusage.pages import bars, curves, html
from gpusage.predictors.explanation import BOUNDS, Explanation, Seconds
from gpusage_hooks.types import Price

COLOURS: dict[str, str] = dict(zip(BOUNDS, ("#27609c", "#d08a2e", "#8a8a8a"), strict=True))
MEMORY_COLOUR = {"memory": "#4b8b6f"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What the page says of one model.

    Attributes:
        words: What it is, and how it is run.
        columns: Of the table of its needs, one row per GPU, with their intervals.
        notes: What a reader should know of the figures, one sentence each.
        prices: What shares cost, for each GPU that can be shared by rising share, as `curves.PERCENTS` has them.
    """

    title: str
    words: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    explanations: Sequence[Explanation]
    prices: Sequence[Sequence[Price]] = ()


def page(models: Sequence[Model], legend: str) -> str:
    """Return the page of *models*; *legend* says how to read their tables."""
    body = "".join(
        f"<h2>{escape(model.title)}</h2><p>{escape(model.words)}</p>{html.table(model.columns, model.rows)}"
        f"<p><small>{escape(legend)}</small></p>{html.notes(model.notes)}"
        f"{_prices(model.prices)}{''.join(section(explanation) for explanation in model.explanations)}"
        for model in models
    )
    return html.page("gpusage predict", body)


def _prices(prices: Sequence[Sequence[Price]]) -> str:
    """Return slowdown against share for each GPU; nothing where none can be shared."""
    return html.figure(curves.plots(prices), curves.CAPTION) if prices else ""


def section(explanation: Explanation) -> str:
    """Return where the time and the memory of a step on one GPU go, drawn and as tables."""
    layers = [
        bars.Bar(
            label=f"node {layer.first_node}, {explain.described(layer)}",
            text=f"{figures.seconds(layer.seconds.total_s)}, {layer.seconds.bound}",
            parts=_parts(layer.seconds),
        )
        for layer in explanation.layers
    ]
    rows = [explain.layer_row(layer, explanation.step_time_s) for layer in explain.merged(explanation.layers)]
    memory = figures.size(explain.memory_bytes(explanation))
    title = f"{explanation.gpu}: {figures.seconds(explanation.step_time_s)} per step, {memory}"
    columns = [column.title for column in explain.LAYER_COLUMNS]
    parts = [
        f"<h3>{escape(title)}</h3>",
        bars.legend(COLOURS),
        html.figure(
            bars.lines(_classes(explanation), COLOURS), "Time of one step by operator class, and what holds it up"
        ),
        html.figure(bars.sequence(layers, COLOURS), "Time by layer, from the first to the last; point at a bar"),
        html.figure(bars.lines(_memory(explanation), MEMORY_COLOUR), "Device memory at its peak"),
        html.table([column.title for column in explain.class_columns(explanation)], explain.class_rows(explanation)),
        f"<details><summary>All layers</summary>{html.table(columns, rows)}</details>",
    ]
    return "".join(parts)


def _classes(explanation: Explanation) -> list[bars.Bar]:
    waiting = bars.Bar(
        label=explain.WAITING, text=figures.seconds(explanation.waiting_s), parts=[("launch", explanation.waiting_s)]
    )
    classes = [
        bars.Bar(label=part.name, text=figures.seconds(part.seconds.total_s), parts=_parts(part.seconds))
        for part in explanation.classes
    ]
    return [*classes, waiting]


def _memory(explanation: Explanation) -> list[bars.Bar]:
    return [
        bars.Bar(
            label=explain.memory_label(part),
            text=figures.size(part.memory_bytes),
            parts=[("memory", part.memory_bytes)],
        )
        for part in sorted(explanation.memory, key=lambda one: -one.memory_bytes)
    ]


def _parts(seconds: Seconds) -> list[tuple[str, float]]:
    return list(zip(BOUNDS, seconds.bound_s, strict=True))
