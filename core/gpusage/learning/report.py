"""An evaluation for people: cells, a JSON document, and one HTML page with plots that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from math import ceil, floor, log10
from typing import Any

from gpusage.learning.targets import Points, ScoreTable

Found = Mapping[str, Sequence[ScoreTable]]
SIDE, MARGIN, MAXIMUM_POINTS = 420.0, 46.0, 1000
THREE_DIGITS = 100
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:.5rem 0}td,th{padding:.2rem .7rem;text-align:right;"
    "border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}"
    "svg{background:#fafafa}small{color:#555}"
)


def cell(value: str | float | None) -> str:
    """Return one cell's text."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1 else f"{value:.{1 if abs(value) < THREE_DIGITS else 0}f}"
    return str(value)


def documents(found: Found) -> dict[str, Any]:
    """Return what ``--json`` prints; points are left to the page."""
    return {
        name: [{key: value for key, value in asdict(table).items() if key != "points"} for table in scores]
        for name, scores in found.items()
    }


def page(found: Found) -> str:
    """Return the page."""
    body = "".join(
        f"<h2>{escape(name)}</h2>{''.join(_section(table) for table in scores)}" for name, scores in found.items()
    )
    head = f"<meta charset='utf-8'><title>gpusage evaluate</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body><h1>gpusage evaluate</h1>{body}</body></html>\n"


def _section(table: ScoreTable) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell(value))}</td>' for value in row)}</tr>" for row in table.rows)
    notes = "".join(f"<p><small>{escape(note)}</small></p>" for note in table.notes)
    plots = "".join(_plot(points) for points in table.points)
    return f"<h3>{escape(table.title)}</h3><table><tr>{head}</tr>{rows}</table>{notes}{plots}"


def _plot(points: Points) -> str:
    """Return predicted over measured, both on logarithmic scales, the 90 % intervals as lines."""
    every = max(1, ceil(len(points.measured) / MAXIMUM_POINTS))
    rows = range(0, len(points.measured), every)
    shown = [*points.measured, *points.predicted]
    first, last = floor(log10(min(shown))), ceil(log10(max(shown)))
    scale = (SIDE - 2 * MARGIN) / max(last - first, 1)

    def place(value: float) -> float:
        return MARGIN + (log10(max(value, 10.0**first)) - first) * scale

    lines = "".join(
        f"<path d='M{place(points.measured[i]):.1f} {SIDE - place(points.low[i]):.1f}"
        f"V{SIDE - place(points.high[i]):.1f}' stroke='#9bd' stroke-width='.6'/>"
        for i in rows
        if points.low
    )
    dots = "".join(
        f"<circle cx='{place(points.measured[i]):.1f}' cy='{SIDE - place(points.predicted[i]):.1f}' r='1.8' "
        f"fill='#136' fill-opacity='.6'><title>{escape(points.labels[i]) if points.labels else ''}</title></circle>"
        for i in rows
    )
    ticks = "".join(
        f"<text x='{place(10.0**power):.0f}' y='{SIDE - 26:.0f}' text-anchor='middle' font-size='11'>1e{power}</text>"
        f"<text x='40' y='{SIDE - place(10.0**power) + 4:.0f}' text-anchor='end' font-size='11'>1e{power}</text>"
        for power in range(first, last + 1)
    )
    ideal = f"<path d='M{MARGIN} {SIDE - MARGIN}L{SIDE - MARGIN} {MARGIN}' stroke='#c33' fill='none'/>"
    words = f"measured, {escape(points.unit)}; upwards: predicted"
    caption = f"<text x='{SIDE / 2}' y='{SIDE - 8}' text-anchor='middle' font-size='12'>{words}</text>"
    svg = f"<svg viewBox='0 0 {SIDE:.0f} {SIDE:.0f}' width='{SIDE:.0f}'>{lines}{ideal}{dots}{ticks}{caption}</svg>"
    return f"<figure>{svg}<figcaption><small>{escape(points.title)}</small></figcaption></figure>"
