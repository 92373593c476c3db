"""Results side by side: a row for each policy, and a page with plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from gpusage.cli import tables
from gpusage.reports.pages import bars, html
from gpusage_planning.simulator.result import Figures, Result
from gpusage_planning.simulator.sweep import Repeated

COLOURS = {"value": "#27609c"}
SLICES = 60
"""Bars of a plot over time."""


def _long(seconds: float) -> str:
    """Return a time for people: seconds, minutes, hours or days."""
    for unit, length, least in (("d", 86400.0, 2), ("h", 3600.0, 1), ("min", 60.0, 2)):
        if seconds >= least * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.1f} %"


BROKEN = "promises broken"
FIGURES: Sequence[tuple[tables.Column, Callable[[Figures], str]]] = (
    (tables.Column("makespan"), lambda one: _long(one.makespan_s)),
    (tables.Column("mean JCT"), lambda one: _long(one.jct_s)),
    (tables.Column("p95 JCT", is_optional=True), lambda one: _long(one.jct_p95_s)),
    (tables.Column("mean wait"), lambda one: _long(one.wait_s)),
    (tables.Column("p95 wait", is_optional=True), lambda one: _long(one.wait_p95_s)),
    (tables.Column("utilization"), lambda one: _percent(one.utilization)),
    (tables.Column("GPU hours"), lambda one: f"{one.gpu_hours:.0f}"),
    (tables.Column("energy"), lambda one: "" if one.energy_kwh is None else f"{one.energy_kwh:.1f} kWh"),
    (tables.Column("shared time"), lambda one: _percent(one.shared_time)),
    (tables.Column(BROKEN), lambda one: _percent(one.broken)),
    (tables.Column("out of memory"), lambda one: str(one.out_of_memory)),
    (tables.Column("preemptions", is_optional=True), lambda one: str(one.preemptions or "")),
    (tables.Column("fragmented", is_optional=True), lambda one: _percent(one.fragmentation)),
    (tables.Column("fairness", is_optional=True), lambda one: f"{one.fairness:.2f}"),
    (tables.Column("most starts on one GPU", is_optional=True), lambda one: _percent(one.most_on_one_gpu)),
)
COLUMNS = (tables.Column("policy", is_left=True), *(column for column, _ in FIGURES))
PLOTTED: Sequence[tuple[str, Callable[[Figures], float], Callable[[float], str]]] = (
    ("Makespan", lambda one: one.makespan_s, _long),
    ("Mean job completion time", lambda one: one.jct_s, _long),
    ("Mean wait", lambda one: one.wait_s, _long),
    ("Utilization", lambda one: one.utilization, _percent),
    ("GPU hours", lambda one: one.gpu_hours, "{:.0f}".format),
)


RATIOS = (("makespan", "makespan_s"), ("mean JCT", "jct_s"), ("utilization", "utilization"))
RATIO_COLUMNS = (tables.Column("policy", is_left=True), *(tables.Column(title) for title, _ in RATIOS))


def row(repeated: Repeated) -> list[str]:
    """Return a policy's cells, in the order of `COLUMNS`; broken promises with their interval."""
    cells = {column.title: show(repeated.figures) for column, show in FIGURES}
    if repeated.broken is not None:
        cells[BROKEN] += f" ({100 * repeated.broken.low:.1f}-{100 * repeated.broken.high:.1f})"
    return [repeated.policy, *cells.values()]


def ratio_row(repeated: Repeated, base: Repeated) -> list[str]:
    """Return a policy's figures over those of *base*, in the order of `RATIO_COLUMNS`."""
    return [f"{repeated.policy} / {base.policy}", *(_range_text(repeated.ratios(base, name)) for _, name in RATIOS)]


def _range_text(ratios: Sequence[float]) -> str:
    """Return the median, and the smallest and largest where there are several."""
    text = f"{median(ratios):.2f}"
    return text if len(ratios) == 1 else f"{text} ({min(ratios):.2f}-{max(ratios):.2f})"


def page(results: Sequence[Repeated], notes: Sequence[str], origin: html.Origin | None = None) -> str:
    """Return a page with the table, a plot for each figure, and how many jobs wait over time; *origin* made it."""
    columns, rows = tables.filled(COLUMNS, [row(one) for one in results])
    body = html.table([column.title for column in columns], rows)
    if len(results) > 1:
        ratios = [ratio_row(one, results[0]) for one in results[1:]]
        body += html.table([column.title for column in RATIO_COLUMNS], ratios)
    body += html.notes(notes)
    for title, value, show in PLOTTED:
        drawn = [
            bars.Bar(label=one.policy, text=show(value(one.figures)), parts=[("value", value(one.figures))])
            for one in results
        ]
        body += html.figure(bars.meters(drawn, COLOURS), title)
    for one in results:
        waiting = _waiting(one.results[0])
        if any(bar.length for bar in waiting):
            body += html.figure(html.wide(bars.sequence(waiting, COLOURS)), f"{one.policy}: jobs that wait, over time")
    return html.page("A simulation of gpusage", body, origin)


def _waiting(result: Result) -> list[bars.Bar]:
    """Return how many jobs wait at moments that are evenly spread over the simulation."""
    submit_s, start_s = result.jobs.submit_s, np.sort(result.start_s)
    first = float(submit_s[0])
    moments = np.linspace(first, first + result.figures.makespan_s, SLICES)
    counts = np.searchsorted(submit_s, moments, side="right") - np.searchsorted(start_s, moments, side="right")
    return [
        bars.Bar(label=_long(moment - first), text=f"{count} jobs", parts=[("value", float(count))])
        for moment, count in zip(moments.tolist(), counts.tolist(), strict=True)
    ]
