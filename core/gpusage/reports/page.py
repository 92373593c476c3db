"""A report as an HTML page with its plots, without network access and readable on a telephone."""

from __future__ import annotations

from collections.abc import Sequence

from gpusage.reports.amounts import Amounts
from gpusage.reports.breakdown import NAMES, Dimension
from gpusage.reports.brief import brief
from gpusage.reports.lines import MOST_GROUPS, NO_NAME, amount, by_title, date, sections, title
from gpusage.reports.pages import bars, html
from gpusage.reports.report import Report

HOURS = {"used": "#4b8b6f", "idle": "#c2571a", "not seen": "#aaaaaa", "freed": "#27609c"}


def page(report: Report, origin: html.Origin | None = None, by: Sequence[Dimension] = ()) -> str:
    """Return the page; *origin* is its version, date and command. Its hours are *by* users where nothing is named."""
    plots = _plots(report)
    contents, body = [], []
    for number, section in enumerate((brief(report), *sections(report, by or ("user",))), start=1):
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

    groups = {}
    for dimension in NAMES:
        # A single bar compares with nothing.
        rows = report.groups[dimension] if len(report.groups[dimension]) > 1 else ()
        drawn = [_hours_bar(each.name or NO_NAME[dimension], each.hours) for each in rows[:MOST_GROUPS]]
        groups[by_title(dimension)] = _plot(drawn, HOURS)

    return {
        "GPU hours by week": _plot([_hours_bar(date(each.since_s), each.hours) for each in report.weeks], HOURS),
        **groups,
        "GPU hours": _plot(hours, HOURS),
    }


def _plot(plotted: Sequence[bars.Bar], colours: dict[str, str]) -> str:
    # Bars without any length would be a legend of nothing.
    return f"{bars.legend(colours)}{bars.meters(plotted, colours)}" if any(bar.length for bar in plotted) else ""


def _hours_bar(name: str, hours: Amounts) -> bars.Bar:
    values = (hours.used, hours.idle, hours.unseen, hours.freed)
    text = f"{amount(hours.booked)} booked of {amount(hours.requested)} asked"
    return bars.Bar(label=name, text=text, parts=list(zip(HOURS, values, strict=True)))
