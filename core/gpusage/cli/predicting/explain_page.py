"""The page of `gpusage predict -o`: GPUs side by side, what shares cost, and where time and memory go, drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from gpusage.cli import tables
from gpusage.cli.predicting import explain
from gpusage.predictors.explanation import BOUNDS, Explanation, Seconds
from gpusage.reports.pages import bars, curves, html
from gpusage.reports.pages.definitions import DEFINITIONS
from gpusage_hooks.types import GpuNeed, Price

COLOURS: dict[str, str] = dict(zip(BOUNDS, ("#27609c", "#d08a2e", "#8a8a8a"), strict=True))
MEMORY_COLOUR = {"memory": "#4b8b6f"}
SPEED_COLOURS = {"samples per second": "#27609c", "up to the upper end": "#c9dcef", "does not fit": "#c2571a"}
DEFINITIONS_ANCHOR = "definitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What the page says of one model.

    Attributes:
        words: What it is, and how it is run.
        columns: Of the table of its needs, one row per GPU, with their intervals.
        notes: What a reader should know of the figures, one sentence each.
        needs: Of the rows, to be drawn side by side.
        prices: What shares cost, for each GPU that can be shared by rising share, as `curves.PERCENTS` has them.
    """

    title: str
    words: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    explanations: Sequence[Explanation]
    needs: Sequence[GpuNeed] = ()
    prices: Sequence[Sequence[Price]] = ()


def page(models: Sequence[Model], legend: str, origin: html.Origin | None = None) -> str:
    """Return the page of *models*; *legend* says how to read their tables."""
    headings, body = [], []
    for number, model in enumerate(models, start=1):
        headings.append((f"model-{number}", model.title))
        headings += [(_anchor(number, each), f"{model.title} on {each.gpu}") for each in model.explanations]
        body += [
            html.heading(2, f"model-{number}", model.title),
            f"<p>{escape(model.words)}</p>{_speeds(model.needs)}{html.table(model.columns, model.rows)}",
            f"<p><small>{escape(legend)}</small></p>{html.notes(model.notes)}",
            html.figure(curves.plots(model.prices), curves.CAPTION) if model.prices else "",
            *(section(explanation, _anchor(number, explanation)) for explanation in model.explanations),
        ]

    contents = html.contents([*headings, (DEFINITIONS_ANCHOR, "What the words mean")])
    words = html.heading(2, DEFINITIONS_ANCHOR, "What the words mean") + html.definitions(DEFINITIONS)
    return html.page("gpusage predict", f"{contents}{''.join(body)}{words}", origin)


def _anchor(number: int, explanation: Explanation) -> str:
    return f"model-{number}-{explanation.gpu}"


def _speeds(needs: Sequence[GpuNeed]) -> str:
    """Return the speeds of GPUs side by side, nothing where there is one alone."""
    if len(needs) < 2:
        return ""

    speeds = []
    for need in needs:
        rate, memory = need.throughput_samples_per_s, tables.size_text(need.memory_bytes.value)
        share = f", {need.share_percent} %" if need.share_percent != curves.WHOLE_PERCENT else ""
        colour = "samples per second" if need.fits else "does not fit"
        speeds.append(
            bars.Bar(
                label=f"{need.gpu}{share}",
                text=f"{tables.interval_text(rate)}; {memory}{'' if need.fits else ', does not fit'}",
                parts=[(colour, rate.value), ("up to the upper end", rate.high - rate.value)],
            )
        )
    return _meters(speeds, SPEED_COLOURS, "Samples per second, and the memory needed")


def section(explanation: Explanation, anchor: str = "explanation") -> str:
    """Return where the time and the memory of a step on one GPU go, drawn and as tables."""
    layers = [
        bars.Bar(
            label=f"node {layer.first_node}, {explain.describe_layer(layer)}",
            text=f"{tables.seconds_text(layer.seconds.total_s)}, {layer.seconds.bound}",
            parts=_parts(layer.seconds),
        )
        for layer in explanation.layers
    ]

    waiting_s = explanation.waiting_s
    classes = [
        bars.Bar(label=part.name, text=tables.seconds_text(part.seconds.total_s), parts=_parts(part.seconds))
        for part in explanation.classes
    ]
    classes.append(bars.Bar(label=explain.WAITING, text=tables.seconds_text(waiting_s), parts=[("launch", waiting_s)]))
    of_memory = [
        bars.Bar(
            label=explain.memory_label(part),
            text=tables.size_text(part.memory_bytes),
            parts=[("memory", part.memory_bytes)],
        )
        for part in sorted(explanation.memory, key=lambda part: -part.memory_bytes)
    ]

    rows = [explain.layer_row(layer, explanation.step_time_s) for layer in explain.merge_layers(explanation.layers)]
    memory = tables.size_text(explain.memory_bytes(explanation))
    predicted = " as predicted" if explanation.known.step_time_s or explanation.known.memory_bytes else ""
    title = f"{explanation.gpu}: {tables.seconds_text(explanation.step_time_s)} per step, {memory}{predicted}"
    columns = [column.title for column in explain.LAYER_COLUMNS]
    sequence = html.wide(bars.sequence(layers, COLOURS))
    parts = [
        html.heading(3, anchor, title),
        f"<p>{escape(explain.account(explanation))}</p>",
        _meters(classes, COLOURS, "Time of one step by operator class, and what holds it up"),
        html.figure(sequence, "Time by layer, from the first to the last; point at a bar"),
        _meters(of_memory, MEMORY_COLOUR, "Device memory at its peak"),
        html.table([column.title for column in explain.class_columns(explanation)], explain.class_rows(explanation)),
        f"<details><summary>All layers</summary>{html.table(columns, rows)}</details>",
    ]
    return "".join(parts)


def _meters(drawn: Sequence[bars.Bar], colours: Mapping[str, str], caption: str) -> str:
    """Return bars with what their colours stand for."""
    # A legend names only colours that are drawn.
    used = {name for bar in drawn for name, length in bar.parts if length > 0}
    legend = bars.legend({name: colour for name, colour in colours.items() if name in used})
    return html.figure(f"{legend}{bars.meters(drawn, colours)}", caption)


def _parts(seconds: Seconds) -> list[tuple[str, float]]:
    return list(zip(BOUNDS, seconds.bound_s, strict=True))
