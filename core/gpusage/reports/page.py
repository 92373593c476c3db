"""A report as an HTML page with its plots, without network access and readable on a telephone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gpusage.reports.amounts import Amounts
from gpusage.reports.breakdown import NAMES
from gpusage.reports.lines import BEFORE, MOST_GROUPS, NO_NAME, amount, by_title, part, sections, title
from gpusage.reports.pages import bars, html
from gpusage.reports.report import Report
from gpusage.reports.tallies import BAND_PERCENT

HOURS = {"used": "#4b8b6f", "idle": "#c2571a", "not seen": "#aaaaaa", "freed": "#27609c"}
CODES = {"REWRITE": "#27609c", "KEEP": "#4b8b6f", "DECLINE": "#aaaaaa"}
BOOKED = {"booked": "#27609c"}
PROMISES = {"kept": "#4b8b6f", "broken": "#c2571a", "unknown": "#aaaaaa"}


def page(report: Report, origin: html.Origin | None = None) -> str:
    """Return the page; *origin* is its version, date and command."""
    plots = _plots(report)
    contents, body = [], []
    for number, section in enumerate(sections(report, [each for each in NAMES if each != "gpu"]), start=1):
        anchor = f"section-{number}"
        contents.append((anchor, section.title))
        table = html.table(section.columns, section.rows) if section.rows else ""
        # The plot stands above the table: it is the same figures, at a glance.
        plot = plots.get(section.title, "")
        body.append(f"{html.heading(2, anchor, section.title)}{plot}{table}{html.notes(section.notes)}")
    return html.page(title(report), f"{html.contents(contents)}{''.join(body)}", origin)


def _plots(report: Report) -> dict[str, str]:
    """Return the plots by the titles of their sections."""
    hours = [_hours_bar(tally.gpu or "not known", tally.hours) for tally in report.gpus]
    if len(report.gpus) > 1:
        hours.append(_hours_bar("all", report.hours))

    periods = []
    if report.previous is not None:
        periods.append(_hours_bar("this period", report.totals.hours))
        periods.append(_hours_bar("the previous period", report.previous.hours))

    groups = {}
    for dimension in NAMES:
        # A single bar compares with nothing.
        rows = report.groups[dimension] if len(report.groups[dimension]) > 1 else ()
        drawn = [_hours_bar(each.name or NO_NAME[dimension], each.hours) for each in rows[:MOST_GROUPS]]
        groups[by_title(dimension)] = _plot(drawn, HOURS)

    counts: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for decision in report.decisions:
        counts[f"{decision.manager}, mode {decision.mode}"].append((decision.code, float(decision.count)))
    codes = [
        bars.Bar(label=label, text=f"{sum(count for _, count in parts):,.0f} jobs", parts=parts)
        for label, parts in counts.items()
    ]

    promises = []
    for name, each in (("given", report.promises_enforced), ("advised or recorded", report.promises_withheld)):
        parts = list(zip(PROMISES, map(float, (each.fulfilled, each.broken, each.unknown)), strict=True))
        text = f"{each.fulfilled:,} kept, {each.broken:,} broken"
        promises.append(bars.Bar(label=f"shares {name}", text=text, parts=parts))

    # Parts of the hours with a known utilization, not of all booked hours.
    seen = sum(band.booked_hours for band in report.bands)
    bands = [
        bars.Bar(
            label=f"utilization {band.from_percent} to {band.from_percent + BAND_PERCENT} %",
            text=f"{amount(band.booked_hours)} GPU hours, {part(band.booked_hours, seen)}",
            parts=[("booked", band.booked_hours)],
        )
        for band in report.bands
    ]
    return {
        BEFORE: _plot(periods, HOURS),
        **groups,
        "Decisions": _plot(codes, CODES),
        "GPU hours": _plot(hours, HOURS),
        "Promises": _plot(promises, PROMISES),
        "How runs used what they booked": _plot(bands, BOOKED),
    }


def _plot(plotted: Sequence[bars.Bar], colours: dict[str, str]) -> str:
    # Bars without any length would be a legend of nothing.
    return f"{bars.legend(colours)}{bars.meters(plotted, colours)}" if any(bar.length for bar in plotted) else ""


def _hours_bar(name: str, hours: Amounts) -> bars.Bar:
    values = (hours.used, hours.idle, hours.unseen, hours.freed)
    text = f"{amount(hours.booked)} booked of {amount(hours.requested)} asked"
    return bars.Bar(label=name, text=text, parts=list(zip(HOURS, values, strict=True)))
