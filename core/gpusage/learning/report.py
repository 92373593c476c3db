"""An evaluation for people: cells, a JSON document, and one HTML page with plots that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from math import ceil, floor, log10
from typing import Any

from gpusage.learning.targets import Points, ScoreTable
from gpusage.pages import html

Found = Mapping[str, Sequence[ScoreTable]]
SIDE, MARGIN, MAXIMUM_POINTS = 420.0, 46.0, 1000
THREE_DIGITS = 100
LEGEND = "A dot is a row: predicted over measured; on the red line the two are equal. Lines are the 90 % intervals."


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
    """Return the page: one section a target."""
    links = " · ".join(f"<a href='#{escape(name)}'>{escape(_words(name))}</a>" for name in found)
    body = "".join(
        f"<h2 id='{escape(name)}'>{escape(_words(name))}</h2>{''.join(_section(table) for table in scores)}"
        for name, scores in found.items()
    )
    return html.page("gpusage evaluate", f"<p>{links}</p><p><small>{LEGEND}</small></p>{body}")


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _section(table: ScoreTable) -> str:
    rows = html.table(table.columns, [[cell(value) for value in row] for row in table.rows])
    notes = "".join(f"<p><small>{escape(note)}</small></p>" for note in table.notes)
    plots = "".join(_plot(points) for points in table.points)
    return f"<h3>{escape(table.title)}</h3>{rows}{notes}{plots}"


def _plot(points: Points) -> str:
    """Return predicted over measured, both on logarithmic scales, the 90 % intervals as lines."""
    rows = range(0, len(points.measured), max(1, ceil(len(points.measured) / MAXIMUM_POINTS)))
    shown = [value for value in (*points.measured, *points.predicted) if value > 0]
    if not shown:
        return ""
    first, last = floor(log10(min(shown))), ceil(log10(max(shown)))
    scale = (SIDE - 2 * MARGIN) / max(last - first, 1)

    def place(value: float) -> float:
        return MARGIN + (log10(min(max(value, 10.0**first), 10.0**last)) - first) * scale

    def x(row: int) -> str:
        return f"{place(points.measured[row]):.1f}"

    def y(value: float) -> str:
        return f"{SIDE - place(value):.1f}"

    bars = "".join(f"M{x(i)} {y(points.low[i])}V{y(points.high[i])}" for i in rows if points.low)
    lines = f"<path d='{bars}' stroke='#9bd' stroke-width='.6'/>" if bars else ""
    dots = "".join(
        f"<circle cx='{x(i)}' cy='{y(points.predicted[i])}' r='1.8'>"
        f"<title>{escape(points.labels[i]) if points.labels else ''}</title></circle>"
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
    drawn = f"{lines}{ideal}<g fill='#136' fill-opacity='.6'>{dots}</g>{ticks}{caption}"
    svg = f"<svg viewBox='0 0 {SIDE:.0f} {SIDE:.0f}' width='{SIDE:.0f}'>{drawn}</svg>"
    part = "" if len(rows) == len(points.measured) else f"; {len(rows)} of {len(points.measured)} rows"
    return f"<figure>{svg}<figcaption><small>{escape(points.title)}{part}</small></figcaption></figure>"
