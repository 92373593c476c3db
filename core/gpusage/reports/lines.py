"""A report as text for people: paragraphs, and tables as columns and rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gpusage.experience.finished_jobs import HOST_BOUND_BELOW
from gpusage.experience.trust import LEAST_CHECKED, LEAST_HELD, LEAST_OWN
from gpusage.reports.accuracy import RULE
from gpusage.reports.amounts import Amounts
from gpusage.reports.breakdown import Dimension, GroupTally, joined
from gpusage.reports.report import Report
from gpusage.reports.sharing import PossibleShares
from gpusage.reports.tallies import PeriodTotals
from gpusage.reports.verdicts import HARDLY_USED_BELOW, Wasted
from gpusage_hooks.units import percent

SAVED_RULE = (
    "Asked: what the same runs would have taken with their users' requests; on the whole GPU, a run is shorter by the "
    "predicted slowdown. Freed: hours of whole GPUs that shares left to others. Two jobs on a GPU at a time free one, "
    "and what is left of a GPU frees nothing. A run that ran out of its share's memory is lost."
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
POSSIBLE_RULE = (
    "Could share: jobs whose share was decided and not given, and jobs that were seen alone on one whole GPU to their "
    "end and would have kept the site's limits on a share. Slower: how much longer they would have taken, from the "
    "least to the most; of what only a node saw, kernels are taken to grow as much as they can. Would free: the GPU "
    "hours that these shares would have left to others, by a replay of when they ran; the first figure is with one "
    "user's jobs on a GPU at a time, the second with any users', as a wall around each job's memory allows."
)
UNSEEN_RULE = "The row of what was not seen is a part of all: what it used is unknown."
WAITING_RULE = (
    f"Jobs with a kernel in less than {percent(HOST_BOUND_BELOW)} of their time. What they wait for is that of the job "
    "with the most idle GPU hours: its processors, where these are busy, else its loader."
)
BEFORE = "This period and the previous one"
MOST_GROUPS = 20
NO_NAME: Mapping[Dimension, str] = MappingProxyType(
    {"user": "not known", "account": "not known", "partition": "not known", "model": "none named", "gpu": "not known"}
)
NO_RUN = "No run was observed: no node sampled a run that ended in this period."


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a report: a table with its rules; without rows, only *notes*."""

    title: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()


def title(report: Report) -> str:
    """Return the title of *report*, with its user and its period."""
    whose = f"jobs of {report.user}" if report.user else "all jobs"
    return f"GPU usage of {whose}" + (f", {day(report.since_s)} to {day(report.until_s)}" if report.until_s else "")


def sections(report: Report, by: Sequence[Dimension] = ()) -> Iterator[Section]:
    """Yield the parts of *report*, the most important first, with its hours *by* some dimensions."""
    if report.run_count:
        yield _before(report)
        yield _hours(report)
        yield _promises(report)
        yield from _host_sections(report)
        # The rules under these tables are long, and the same for all.
        yield from (by_section(dimension, report, is_first=dimension == by[0]) for dimension in by)
        yield from _verdict_sections(report)
    yield from _decision_sections(report)
    yield _trueness(report) if report.run_count else Section(title="GPU hours", notes=(NO_RUN, *_unaccounted(report)))


def amount(value: float) -> str:
    """Return GPU hours, or money, with as many digits as matter."""
    # Three digits: the limits are the values that would round up to a fourth.
    digits = next((digits for limit, digits in ((9.995, 2), (99.95, 1)) if abs(value) < limit), 0)
    # Adding 0.0 turns -0.0 into 0.0.
    return f"{round(value, digits) + 0.0:,.{digits}f}"


def count_text(job_count: int) -> str:
    """Return a number of jobs for people."""
    return f"{job_count:,} job" + "s" * (job_count != 1)


def part(value: float, whole: float) -> str:
    """Return *value* in percent of *whole*; a dash where *whole* is 0."""
    return percent(value / whole) if whole else "-"


def _decision_sections(report: Report) -> Iterator[Section]:
    rows = [(each.code, each.mode, each.manager, f"{each.count:,}") for each in report.decisions]
    notes = () if rows else ("No decision was recorded in this period.",)
    if report.if_shared_count:
        notes = (
            f"If GPUs could be shared, {count_text(report.if_shared_count)} of these would have had a part of one.",
        )
    yield Section(title="Decisions", columns=("decision", "mode", "manager", "jobs"), rows=rows, notes=notes)

    if report.reasons:
        reasons = [(each.reason, each.code, f"{each.count:,}") for each in report.reasons]
        title_of_reasons = "First reasons, most frequent first"
        yield Section(title=title_of_reasons, columns=("reason", "decision", "jobs"), rows=reasons)

    unnamed = report.unnamed
    # Without such jobs in this period, runs of earlier ones may still have been checked.
    if unnamed.jobs or unnamed.checked:
        counts = (unnamed.jobs, unnamed.estimated, unnamed.shares, unnamed.withheld, unnamed.checked)
        row = (*(f"{count:,}" for count in counts), part(unnamed.held, unnamed.checked))
        columns = ("jobs", "told by history", "shares given", "shares only recorded", "runs checked", "held")
        yield Section(title="Jobs that name no model", columns=columns, rows=[row], notes=(UNNAMED_RULE,))


def _hours(report: Report) -> Section:
    rows = [_amounts(each.gpu or "not known", each.run_count, each.hours) for each in report.gpus]
    rows += [_amounts("all", report.run_count, report.hours)]
    rows += [_amounts(f"in {report.currency}", report.run_count, report.money)] if report.money else []

    notes = [SAVED_RULE, USED_RULE]
    missing = ", ".join(each.gpu for each in report.gpus if each.money is None)
    if report.currency == "weights":
        notes.append(
            "The row in weights is what the manager bills in the most expensive partition: [money] has no price."
        )
        notes += [f"GPUs without a weight: {missing}."] if missing else []
    elif report.money is not None and missing:
        # A sum over some GPUs alone must not pass for the sum of the row "all".
        notes.append(f"The row in money has only GPUs with a price in [money]; without one: {missing}.")
    if report.totals.energy is not None:
        kwh, hours = amount(report.totals.energy.kwh), amount(report.totals.energy.booked_hours)
        notes.append(f"Energy: {kwh} kWh in the {hours} GPU hours of jobs alone on a GPU with a counter.")
    notes += _unaccounted(report)
    columns = ("GPU hours", "runs", "asked", "booked", "used", "idle", "not seen", "freed")
    return Section(title="GPU hours", columns=columns, rows=rows, notes=notes)


def _unaccounted(report: Report) -> list[str]:
    return [f"Jobs that no node sampled are not counted: {each}" for each in report.unaccounted]


def by_title(dimension: Dimension) -> str:
    """Return the title of the hours by *dimension*."""
    return f"GPU hours by {dimension}"


def by_section(dimension: Dimension, report: Report, *, is_first: bool) -> Section:
    """Return the hours by *dimension*: the largest groups, a row for all others, all jobs, and the unseen hours."""
    groups = report.groups[dimension]
    rows = [_group(each.name or NO_NAME[dimension], each) for each in groups[:MOST_GROUPS]]
    others = groups[MOST_GROUPS:]
    if others:
        # The rows add up to "all", however many groups there are.
        rows.append(_group(f"{len(others):,} others", joined(others)))
    rows += [_group("all", report.all_jobs), _group("of all, not seen", report.unseen)]
    columns = (dimension, "jobs", "asked", "booked", "used", "idle", "not seen", "could share", "slower", "would free")
    notes = (UNSEEN_RULE, POSSIBLE_RULE) if is_first else ()
    return Section(title=by_title(dimension), columns=columns, rows=rows, notes=notes)


def _group(name: str, group: GroupTally) -> Sequence[str]:
    hours, possible = group.hours, group.possible
    taken = map(amount, (hours.requested, hours.booked, hours.used, hours.idle, hours.unseen))
    if possible is None:
        return (name, f"{group.job_count:,}", *taken, "-", "-", "-")

    price = slower(possible)
    return (name, f"{group.job_count:,}", *taken, f"{possible.job_count:,}", price, freed(possible))


def freed(possible: PossibleShares) -> str:
    """Return what *possible* shares would free, as people read it: ``2.00 to 7.50`` GPU hours."""
    return " to ".join(dict.fromkeys(map(amount, (possible.freed_hours, possible.most_freed_hours))))


def slower(possible: PossibleShares) -> str:
    """Return the price of *possible* shares: ``5 to 22 %, 40 at worst``, or ``5 %`` where all round to that."""
    low, high, worst = (
        f"{100 * (each - 1):.0f}" for each in (possible.slowdown_low, possible.slowdown_high, possible.worst_slowdown)
    )
    return f"{' to '.join(dict.fromkeys((low, high)))} %{f', {worst} at worst' if worst != high else ''}"


def _amounts(name: str, run_count: int, hours: Amounts) -> Sequence[str]:
    values = (hours.requested, hours.booked, hours.used, hours.idle, hours.unseen, hours.freed)
    return (name, f"{run_count:,}", *map(amount, values))


def _promises(report: Report) -> Section:
    promises = {
        "shares that were given": report.promises_enforced,
        "shares that were only advised or recorded": report.promises_withheld,
    }
    rows = [(name, f"{each.fulfilled:,}", f"{each.broken:,}", f"{each.unknown:,}") for name, each in promises.items()]
    columns = ("promises to", "kept", "broken", "unknown")
    return Section(title="Promises", columns=columns, rows=rows, notes=(RULE,))


def _verdict_sections(report: Report) -> Iterator[Section]:
    verdicts = [
        (each.verdict, f"{each.run_count:,}", amount(each.hours.booked), part(each.hours.booked, report.hours.booked))
        for each in report.verdicts
    ]
    yield Section(
        title="How runs used what they booked",
        columns=("verdict", "runs", "booked GPU hours", "of all"),
        rows=verdicts,
        notes=tuple(f"{each.verdict}: {each.rule}." for each in report.verdicts),
    )

    worst = [(*_booked_by(each), amount(each.hours.idle), each.verdict, each.advice or "-") for each in report.worst]
    yield Section(
        title="Jobs with the most idle GPU hours",
        columns=("job", "user", "GPU", "booked", "idle", "verdict", "request next time"),
        rows=worst,
        notes=() if worst else ("No job was seen idle.",),
    )


def _booked_by(job: Wasted) -> Sequence[str]:
    name = f"{job.job_id} {job.job_name}".strip()
    return name, job.user, job.gpu or "not known", amount(job.hours.booked)


def _before(report: Report) -> Section:
    """Return the totals of this period beside the previous period's."""
    if report.previous is None:
        return Section(title=BEFORE, notes=("The store has nothing from the previous period.",))

    rows = []
    for name, value_of, show in _TOTALS:
        now, then = value_of(report.totals), value_of(report.previous)
        # From 0 or from unknown there is no relative change.
        change = f"{100 * (now / then - 1):+.0f} %" if now is not None and then else "-"
        rows.append((name, *("-" if value is None else show(value) for value in (now, then)), change))
    notes = [f"The previous period is {day(report.previous_since_s)} to {day(report.since_s)}."]
    return Section(title=BEFORE, columns=("", "this period", "before", "change"), rows=rows, notes=notes)


_TOTALS: Sequence[tuple[str, Callable[[PeriodTotals], float | None], Callable[[float], str]]] = (
    ("jobs with GPUs", lambda totals: totals.job_count, "{:,}".format),
    ("users", lambda totals: totals.user_count, "{:,}".format),
    ("jobs with a share in place of a GPU", lambda totals: totals.share_count, "{:,}".format),
    ("promises kept", lambda totals: totals.promises.fulfilled, "{:,}".format),
    ("promises broken", lambda totals: totals.promises.broken, "{:,}".format),
    ("GPU hours asked", lambda totals: totals.hours.requested, amount),
    ("GPU hours booked", lambda totals: totals.hours.booked, amount),
    ("GPU hours used", lambda totals: totals.hours.used, amount),
    ("GPU hours idle", lambda totals: totals.hours.idle, amount),
    ("GPU hours not seen", lambda totals: totals.hours.unseen, amount),
    ("GPU hours freed by sharing", lambda totals: totals.hours.freed, amount),
    ("kWh of runs alone on their GPUs", lambda totals: totals.energy.kwh if totals.energy else None, amount),
)
"""The rows of the comparison: a name, the figure, and its text."""


def _host_sections(report: Report) -> Iterator[Section]:
    """Yield the jobs that hardly use their GPUs, and the users whose jobs wait for their hosts."""
    hardly, below = report.hardly_used, percent(HARDLY_USED_BELOW)
    hardly_used = [
        (*_booked_by(each), percent(each.hours.used / (each.hours.used + each.hours.idle)), each.advice or "-")
        for each in hardly.worst
    ]
    booked, idle = amount(hardly.hours.booked), amount(hardly.hours.idle)
    # The table has the worst jobs alone, so the sum over all stands below it.
    note = f"{count_text(hardly.job_count)}, {booked} GPU hours, {idle} of them idle."
    yield Section(
        title=f"Jobs that hold whole GPUs and use them less than {below}",
        columns=("job", "user", "GPU", "booked", "busy", "request next time"),
        rows=hardly_used,
        notes=(note,) if hardly_used else (f"No job was seen to use whole GPUs less than {below}.",),
    )

    waiting = [
        (each.user, f"{each.job_count:,}", amount(each.hours.booked), amount(each.hours.idle), each.waits_for)
        for each in report.waiting
    ]
    yield Section(
        title="Who waits for data",
        columns=("user", "jobs", "booked", "idle", "waits for"),
        rows=waiting,
        notes=(WAITING_RULE,) if waiting else ("No job was seen to wait for its host.",),
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


def day(seconds: float) -> str:
    """Return a time since 1970 for people."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds)) + " UTC"
