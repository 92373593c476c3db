"""A report as one HTML page with its plots; it needs no network, and is readable on a telephone."""

from __future__ import annotations

from collections.abc import Iterator

from gpusage.reports.amounts import Amounts
from gpusage.reports.breakdown import NAMES, Dimension
from gpusage.reports.lines import BEFORE, MOST_GROUPS, NO_NAME, Section, amount, by_title, part, sections, title
from gpusage.reports.pages import bars, html
from gpusage.reports.report import BAND_PERCENT, Report

HOURS = {"used": "#4b8b6f", "idle": "#c2571a", "not seen": "#aaaaaa", "saved": "#27609c"}
CODES = {"REWRITE": "#27609c", "KEEP": "#4b8b6f", "DECLINE": "#aaaaaa"}
BOOKED = {"booked": "#27609c"}
PROMISES = {"kept": "#4b8b6f", "broken": "#c2571a", "unknown": "#aaaaaa"}


def page(report: Report, origin: html.Origin | None = None) -> str:
    """Return the page; *origin* says where it is from."""
    plots = _plots(report)
    parts = [(f"section-{number}", section) for number, section in enumerate(sections(report, [*NAMES]), start=1)]
    contents = html.contents((anchor, section.title) for anchor, section in parts)
    body = "".join(_section(section, anchor, plots.get(section.title, "")) for anchor, section in parts)
    return html.page(title(report), f"{contents}{body}", origin)


def _section(section: Section, anchor: str, plot: str) -> str:
    table = html.table(section.columns, section.rows) if section.rows else ""
    return f"{html.heading(2, anchor, section.title)}{plot}{table}{html.notes(section.notes)}"


def _plots(report: Report) -> dict[str, str]:
    """Return the plots by the title of the section that they belong to."""
    return {
        BEFORE: _plot(_before(report), HOURS),
        **{by_title(dimension): _plot(_groups(dimension, report), HOURS) for dimension in NAMES},
        "Decisions": _plot(_codes(report), CODES),
        "GPU hours": _plot(_hours(report), HOURS),
        "Promises": _plot(_promises(report), PROMISES),
        "How runs used what they booked": _plot(_bands(report), BOOKED),
    }


def _plot(drawn: Iterator[bars.Bar], colours: dict[str, str]) -> str:
    plotted = list(drawn)
    return f"{bars.legend(colours)}{bars.meters(plotted, colours)}" if any(bar.length for bar in plotted) else ""


def _codes(report: Report) -> Iterator[bars.Bar]:
    modes = sorted({(each.manager, each.mode) for each in report.decisions})
    for manager, mode in modes:
        here = [each for each in report.decisions if (each.manager, each.mode) == (manager, mode)]
        parts = [(each.code, float(each.count)) for each in here]
        yield bars.Bar(label=f"{manager}, mode {mode}", text=f"{sum(each.count for each in here):,} jobs", parts=parts)


def _hours(report: Report) -> Iterator[bars.Bar]:
    for each in report.gpus:
        yield _hours_bar(each.gpu or "not known", each.hours)
    if len(report.gpus) > 1:
        yield _hours_bar("all", report.hours)


def _before(report: Report) -> Iterator[bars.Bar]:
    if report.previous is not None:
        yield _hours_bar("this period", report.totals.hours)
        yield _hours_bar("the previous period", report.previous.hours)


def _groups(dimension: Dimension, report: Report) -> Iterator[bars.Bar]:
    groups = report.groups[dimension]
    if len(groups) > 1:
        for each in groups[:MOST_GROUPS]:
            yield _hours_bar(each.name or NO_NAME[dimension], each.hours)


def _hours_bar(name: str, hours: Amounts) -> bars.Bar:
    values = (hours.used, hours.idle, hours.unseen, hours.saved)
    text = f"{amount(hours.booked)} booked of {amount(hours.requested)} asked"
    return bars.Bar(label=name, text=text, parts=list(zip(HOURS, values, strict=True)))


def _promises(report: Report) -> Iterator[bars.Bar]:
    for name, each in (("given", report.promises_enforced), ("advised or recorded", report.promises_withheld)):
        values = (each.fulfilled, each.broken, each.unknown)
        text = f"{each.fulfilled:,} kept, {each.broken:,} broken"
        yield bars.Bar(label=f"shares {name}", text=text, parts=list(zip(PROMISES, map(float, values), strict=True)))


def _bands(report: Report) -> Iterator[bars.Bar]:
    seen = sum(band.booked_hours for band in report.bands)
    for band in report.bands:
        label = f"utilization {band.from_percent} to {band.from_percent + BAND_PERCENT} %"
        text = f"{amount(band.booked_hours)} GPU hours, {part(band.booked_hours, seen)}"
        yield bars.Bar(label=label, text=text, parts=[("booked", band.booked_hours)])
