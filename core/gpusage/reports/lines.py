"""A report as text for people: paragraphs, and tables as columns and rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpusage.experience.trust import LEAST_CHECKED, LEAST_HELD, LEAST_OWN
from gpusage.reports.accuracy import RULE, Promises
from gpusage.reports.amounts import Amounts
from gpusage.reports.report import Report
from gpusage_hooks.units import percent

SAVED_RULE = (
    "Asked: what the same runs would have taken with their users' requests; on the whole GPU, a run is shorter by the "
    "predicted slowdown. Saved: asked less booked. A run that ran out of its share's memory counts as lost."
)
TRUE_RULE = (
    "Observed over predicted: the middle run, and in parentheses the half of the runs around it. 9 of 10 runs should "
    "be inside their interval."
)
USED_RULE = "Used: the booked time with a kernel running; unknown where other jobs were on the GPU."
UNNAMED_RULE = (
    f"Held: the run stayed below the upper ends of all estimates from its history. History decides from "
    f"{LEAST_CHECKED} checked runs on, of which {percent(LEAST_HELD)} held, and {LEAST_OWN} of the job's own user."
)
NO_RUN = "No run was observed: no node sampled a run that ended in this time."


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a report: a table with its rules; without rows, only *notes*."""

    title: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()


def title(report: Report) -> str:
    """Return whose report of which time it is."""
    whose = f"jobs of {report.user}" if report.user else "all jobs"
    return f"GPU usage of {whose}, {_day(report.since_s)} to {_day(report.until_s)}"


def sections(report: Report) -> Iterator[Section]:
    """Yield the parts of *report*, what matters most first."""
    yield _decisions(report)
    if report.reasons:
        yield _reasons(report)
    if report.unnamed.jobs or report.unnamed.checked:
        yield _unnamed(report)
    if not report.run_count:
        yield Section(title="GPU hours", notes=(NO_RUN,))
        return
    yield _hours(report)
    yield _promises(report)
    yield _verdicts(report)
    yield _worst(report)
    yield _trueness(report)


def amount(value: float) -> str:
    """Return GPU hours, or money, with as many digits as matter."""
    digits = next((digits for limit, digits in ((9.995, 2), (99.95, 1)) if abs(value) < limit), 0)
    return f"{round(value, digits) + 0.0:,.{digits}f}"  # no -0.00


def part(value: float, whole: float) -> str:
    """Return *value* as its part of *whole*; a dash where there is none."""
    return percent(value / whole) if whole else "-"


def _decisions(report: Report) -> Section:
    rows = [(each.code, each.mode, each.manager, f"{each.count:,}") for each in report.decisions]
    notes = () if rows else ("No decision was recorded in this time.",)
    return Section(title="Decisions", columns=("decision", "mode", "manager", "jobs"), rows=rows, notes=notes)


def _reasons(report: Report) -> Section:
    rows = [(each.reason, each.code, f"{each.count:,}") for each in report.reasons]
    return Section(title="First reasons, most frequent first", columns=("reason", "decision", "jobs"), rows=rows)


def _unnamed(report: Report) -> Section:
    each = report.unnamed
    row = (f"{each.jobs:,}", f"{each.estimated:,}", f"{each.shares:,}", f"{each.withheld:,}", f"{each.checked:,}")
    columns = ("jobs", "told by history", "shares given", "shares only recorded", "runs checked", "held")
    rows = [(*row, part(each.held, each.checked))]
    return Section(title="Jobs that name no model", columns=columns, rows=rows, notes=(UNNAMED_RULE,))


def _hours(report: Report) -> Section:
    rows = [_amounts(each.gpu or "not known", each.run_count, each.hours) for each in report.gpus]
    rows += [_amounts("all", report.run_count, report.hours)]
    rows += [_amounts(f"in {report.currency}", report.run_count, report.money)] if report.money else []
    notes = [SAVED_RULE, USED_RULE, *_rate_notes(report)]
    if report.hours.savable:
        notes.append(
            f"Shares that were only advised or recorded could have saved {amount(report.hours.savable)} GPU hours."
        )
    columns = ("GPU hours", "runs", "asked", "booked", "used", "idle", "not seen", "saved")
    return Section(title="GPU hours", columns=columns, rows=rows, notes=notes)


def _rate_notes(report: Report) -> list[str]:
    if report.money is None:
        return []
    missing = ", ".join(each.gpu for each in report.gpus if each.money is None)
    if report.currency == "weights":
        rule = "The row in weights is what the workload manager bills in the dearest partition: [money] has no price."
        return [rule, f"GPUs without a weight: {missing}."] if missing else [rule]
    return [f"The row in money has only GPUs with a price in [money]; without one: {missing}."] if missing else []


def _amounts(name: str, run_count: int, hours: Amounts) -> Sequence[str]:
    values = (hours.requested, hours.booked, hours.used, hours.idle, hours.unseen, hours.saved)
    return (name, f"{run_count:,}", *map(amount, values))


def _promises(report: Report) -> Section:
    rows = [
        _promised("shares that were given", report.promises_enforced),
        _promised("shares that were only advised or recorded", report.promises_withheld),
    ]
    columns = ("promises to", "kept", "broken", "unknown")
    return Section(title="Promises", columns=columns, rows=rows, notes=(RULE,))


def _promised(name: str, promises: Promises) -> Sequence[str]:
    return name, f"{promises.fulfilled:,}", f"{promises.broken:,}", f"{promises.unknown:,}"


def _verdicts(report: Report) -> Section:
    rows = [
        (each.verdict, f"{each.run_count:,}", amount(each.hours.booked), part(each.hours.booked, report.hours.booked))
        for each in report.verdicts
    ]
    return Section(
        title="How runs used what they booked",
        columns=("verdict", "runs", "booked GPU hours", "of all"),
        rows=rows,
        notes=tuple(f"{each.verdict}: {each.rule}." for each in report.verdicts),
    )


def _worst(report: Report) -> Section:
    rows = [
        (
            f"{each.job_id} {each.job_name}".strip(),
            each.user,
            each.gpu or "not known",
            amount(each.hours.booked),
            amount(each.hours.idle),
            each.verdict,
            each.advice or "-",
        )
        for each in report.worst
    ]
    return Section(
        title="Jobs with the most idle GPU hours",
        columns=("job", "user", "GPU", "booked", "idle", "verdict", "request next time"),
        rows=rows,
        notes=() if rows else ("No job was seen idle.",),
    )


def _trueness(report: Report) -> Section:
    rows = [
        (
            f"{each.family or 'not known'} on {each.gpu}",
            each.figure,
            f"{each.run_count:,}",
            f"{each.ratio:.2f} ({each.ratio_low:.2f}-{each.ratio_high:.2f})",
            f"{each.inside_count} of {each.interval_count}" if each.interval_count else "-",
        )
        for each in report.trueness
    ]
    return Section(
        title="Predicted and observed",
        columns=("model family", "figure", "runs", "observed/predicted", "inside"),
        rows=rows,
        notes=(TRUE_RULE,) if rows else ("No run can be compared with its prediction yet.",),
    )


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds)) + " UTC"
