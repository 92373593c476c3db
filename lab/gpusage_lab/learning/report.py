"""An evaluation for people: cells, Markdown, a JSON document, and one HTML page with plots that needs no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from math import ceil, floor, log, log10, sqrt
from typing import Any, NamedTuple

from gpusage.reports.pages import html
from gpusage_lab.learning.targets import Points, ScoreTable

Results = Mapping[str, Sequence[ScoreTable]]
SIDE, MARGIN, MAXIMUM_POINTS = 420.0, 46.0, 1000
ROOM, LEAST_REACH, SHORT = 1.1, 1.5, 100.0
"""Of an axis: by what factor it is longer at either end, how far it reaches from its middle at least, and from which
length on it names powers of ten alone."""
THREE_DIGITS = 100
"""From here on a cell shows no decimals."""
LONG = 12
"""Tables of more rows are folded in Markdown."""
LEGEND = "A dot is a row: predicted over measured; on the red line the two are equal. Lines are the 90 % intervals."


def cell(value: str | float | None) -> str:
    """Return one cell's text."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1 else f"{value:.{1 if abs(value) < THREE_DIGITS else 0}f}"
    return str(value)


def table_lines(table: ScoreTable) -> Iterator[str]:
    """Yield the lines of *table* in Markdown: its title, its rows, its notes."""
    is_long = len(table.rows) > LONG
    yield from (f'<details markdown="1"><summary>{table.title}</summary>' if is_long else f"**{table.title}**", "")
    yield f"| {' | '.join(table.columns)} |"
    yield f"|---|{'--:|' * (len(table.columns) - 1)}"
    yield from (f"| {' | '.join(cell(value) for value in row)} |" for row in table.rows)
    yield ""
    yield from (f"{note}  " for note in table.notes)
    if is_long:
        yield from ("", "</details>")


def documents(results: Results) -> dict[str, Any]:
    """Return what ``--json`` prints; points are left to the page."""
    return {
        name: [{key: value for key, value in asdict(table).items() if key != "points"} for table in scores]
        for name, scores in results.items()
    }


def page(results: Results) -> str:
    """Return the page: one section per target."""
    links = " · ".join(f"<a href='#{escape(name)}'>{escape(_words(name))}</a>" for name in results)
    body = "".join(
        f"<h2 id='{escape(name)}'>{escape(_words(name))}</h2>{''.join(_section(table) for table in scores)}"
        for name, scores in results.items()
    )
    return html.page("gpusage evaluate", f"<p>{links}</p><p><small>{LEGEND}</small></p>{body}")


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _section(table: ScoreTable) -> str:
    rows = html.table(table.columns, [[cell(value) for value in row] for row in table.rows])
    notes = "<br>".join(escape(note) for note in table.notes)
    plots = "".join(_plot(points) for points in table.points)
    return f"<h3>{escape(table.title)}</h3>{rows}<p><small>{notes}</small></p><div class='plots'>{plots}</div>"


class _Scale(NamedTuple):
    """A logarithmic axis, the same for both directions; *least* and *most* are its ends."""

    least: float
    most: float

    def place(self, value: float) -> float:
        """Return how far from the plot's left or lower edge *value* stands; what lies outside stands at an end."""
        inside = min(max(value, self.least), self.most)
        return MARGIN + (SIDE - 2 * MARGIN) * log(inside / self.least) / log(self.most / self.least)

    def ticks(self) -> list[float]:
        """Return round values to be named: powers of ten, and 2 and 5 times these where the axis is short."""
        steps = (1, 2, 5) if self.most / self.least < SHORT else (1,)
        powers = range(floor(log10(self.least)), ceil(log10(self.most)) + 1)
        values = [step * 10.0**power for power in powers for step in steps]
        return [value for value in values if self.least <= value <= self.most]


def _scale(values: Sequence[float]) -> _Scale:
    """Return an axis on which *values* fill most of the plot."""
    middle = sqrt(min(values) * max(values))
    reach = max(ROOM * sqrt(max(values) / min(values)), LEAST_REACH)
    return _Scale(middle / reach, middle * reach)


def _plot(points: Points) -> str:
    """Return predicted over measured, both on logarithmic scales, the 90 % intervals as lines."""
    rows = range(0, len(points.measured), max(1, ceil(len(points.measured) / MAXIMUM_POINTS)))
    shown = [value for value in (*points.measured, *points.predicted) if value > 0]
    if not shown:
        return ""
    scale = _scale(shown)

    def x(row: int) -> str:
        return f"{scale.place(points.measured[row]):.1f}"

    def y(value: float) -> str:
        return f"{SIDE - scale.place(value):.1f}"

    bars = "".join(f"M{x(i)} {y(points.low[i])}V{y(points.high[i])}" for i in rows if points.low)
    lines = f"<path d='{bars}' stroke='#9bd' stroke-width='.6'/>" if bars else ""
    dots = "".join(
        f"<circle cx='{x(i)}' cy='{y(points.predicted[i])}' r='1.8'>"
        f"<title>{escape(points.labels[i]) if points.labels else ''}</title></circle>"
        for i in rows
    )
    ideal = f"<path d='M{MARGIN} {SIDE - MARGIN}L{SIDE - MARGIN} {MARGIN}' stroke='#c33' fill='none'/>"
    drawn = f"{_axes(scale, points.unit)}{lines}{ideal}<g fill='#136' fill-opacity='.6'>{dots}</g>"
    svg = f"<svg viewBox='0 0 {SIDE:.0f} {SIDE:.0f}' width='{SIDE:.0f}' role='img'>{drawn}</svg>"
    part = "" if len(rows) == len(points.measured) else f"; {len(rows)} of {len(points.measured)} rows"
    return html.figure(svg, f"{points.title}{part}")


def _axes(scale: _Scale, unit: str) -> str:
    """Return the lines of round values, with their numbers, and what either direction shows."""
    drawn = []
    for value in scale.ticks():
        at, end = scale.place(value), SIDE - MARGIN
        grid = f"M{at:.1f} {MARGIN:.0f}V{end:.0f}M{MARGIN:.0f} {SIDE - at:.1f}H{end:.0f}"
        drawn.append(
            f"<path d='{grid}' stroke='#ddd' fill='none'/><g font-size='11'>"
            f"<text x='{at:.1f}' y='{end + 16:.0f}' text-anchor='middle'>{value:g}</text>"
            f"<text x='{MARGIN - 6:.0f}' y='{SIDE - at + 4:.1f}' text-anchor='end'>{value:g}</text></g>"
        )
    middle = f"{SIDE / 2:.0f}"
    words = (
        f"<text x='{middle}' y='{SIDE - 8:.0f}'>measured, {escape(unit)}</text>"
        f"<text x='{middle}' y='14' transform='rotate(-90 {middle} {middle})'>predicted</text>"
    )
    return f"{''.join(drawn)}<g text-anchor='middle' font-size='12'>{words}</g>"
