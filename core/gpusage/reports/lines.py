"""A report as text for people: paragraphs, and tables as columns and rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gpusage.experience.trust import LEAST_CHECKED, LEAST_HELD, LEAST_OWN
from gpusage.reports.accuracy import RULE, Promises
from gpusage.reports.amounts import Amounts
from gpusage.reports.breakdown import Dimension, GroupTally, joined
from gpusage.reports.report import Report
from gpusage.reports.sharing import PossibleShares
from gpusage.reports.summary import IDLE_S, WEEK_S
from gpusage.reports.verdicts import HARDLY_USED_BELOW, RULES
from gpusage_hooks.units import DAY_S, HOUR_S, percent

SAVED_RULE = (
    "Asked: what the same runs would have taken with their users' requests; on the whole GPU, a run is shorter by the "
    "predicted slowdown. Freed: hours of whole GPUs that shares left to others. Of k jobs on one GPU at a time, k - 1 "
    "free a GPU, and what is left of a GPU frees nothing. A run that ran out of its share's memory is lost."
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
    "user's jobs on a GPU at a time, the second with any users', as a wall around each job's memory allows, and the "
    "worst is the first at the upper ends of the prices."
)
UNSEEN_RULE = "The row of what was not seen is a part of all: what it used is unknown."
WEEKS_RULE = (
    "A job counts in the week in which it ended. Capacity: the hours of the GPUs that the clusters had, day by day; "
    "where gpusaged noted none, of those that they have today."
)
SHOWN_USERS = 3
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
    """Yield the tables of *report*, with its hours *by* some dimensions; none that says nothing."""
    if report.run_count:
        yield _weeks(report)
        yield _hours(report)
        # The rules under these tables are long, and the same for all.
        yield from (by_section(dimension, report, is_first=dimension == by[0]) for dimension in by)
        yield _idle(report)
    else:
        yield Section(title="GPU hours", notes=(NO_RUN, *_unaccounted(report)))
    yield _decisions(report)
    if report.trueness or report.promises_enforced != Promises() or report.promises_withheld != Promises():
        yield _trueness(report)


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


def capacity_hours(report: Report, since_s: float, until_s: float) -> float:
    """Return the GPU hours that the clusters had in the part of a time that *report* is of; 0 if unknown."""
    begin_s, end_s = max(since_s, report.since_s), min(until_s, report.until_s)
    capacity_s = report.gpu_count * max(0.0, end_s - begin_s)
    # Where gpusaged noted no capacity, it is taken as today's.
    for day, gpu_count in report.day_gpu_counts.items() if report.gpu_count else ():
        part_s = max(0.0, min(end_s, float(day) + DAY_S) - max(begin_s, float(day)))
        capacity_s += (gpu_count - report.gpu_count) * part_s
    return capacity_s / HOUR_S


def _weeks(report: Report) -> Section:
    rows = []
    for week in report.weeks:
        hours = week.hours
        values = (hours.booked, hours.used, hours.idle, hours.unseen, hours.freed)
        capacity = capacity_hours(report, week.since_s, week.since_s + WEEK_S)
        shown = amount(capacity) if capacity else "-"
        rows.append((date(week.since_s), f"{week.job_count:,}", shown, *map(amount, values)))
    columns = ("week from", "jobs", "capacity", "booked", "used", "idle", "not seen", "freed")
    notes = [WEEKS_RULE]
    if before := report.previous:
        hours = before.hours
        notes.append(
            f"Before, {day(report.previous_since_s)} to {day(report.since_s)}: {count_text(before.job_count)}, "
            f"{amount(hours.booked)} GPU hours booked, {amount(hours.used)} used, {amount(hours.freed)} freed."
        )
    return Section(title="GPU hours by week", columns=columns, rows=rows, notes=notes)


def _hours(report: Report) -> Section:
    rows = [_amounts(each.gpu or "not known", each.run_count, each.hours) for each in report.gpus]
    rows += [_amounts("all", report.run_count, report.hours)]
    rows += [_amounts(f"in {report.currency}", report.run_count, report.money)] if report.money else []

    notes = [SAVED_RULE, USED_RULE]
    missing = ", ".join(
        f"{each.gpu or 'GPUs of no known type'} ({each.run_count:,} runs)" for each in report.gpus if each.money is None
    )
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
    columns = ("GPU", "runs", "asked", "booked", "used", "idle", "not seen", "freed")
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


def freed(possible: PossibleShares, unit: str = "") -> str:
    """Return what *possible* shares would free, as people read it: ``2.00 to 7.50, 1.10 at worst``."""
    low, high, least = map(amount, (possible.freed_hours, possible.most_freed_hours, possible.least_freed_hours))
    return f"{' to '.join(dict.fromkeys((low, high)))}{unit}{f', {least} at worst' if least != low else ''}"


def slower(possible: PossibleShares) -> str:
    """Return the price of *possible* shares: ``5 to 22 %, 40 at worst``, or ``5 %`` where all round to that."""
    low, high, worst = (
        f"{100 * (each - 1):.0f}" for each in (possible.slowdown_low, possible.slowdown_high, possible.worst_slowdown)
    )
    return f"{' to '.join(dict.fromkeys((low, high)))} %{f', {worst} at worst' if worst != high else ''}"


def _amounts(name: str, run_count: int, hours: Amounts) -> Sequence[str]:
    values = (hours.requested, hours.booked, hours.used, hours.idle, hours.unseen, hours.freed)
    return (name, f"{run_count:,}", *map(amount, values))


def _idle(report: Report) -> Section:
    """Return the jobs with the most idle time, those that hardly use whole GPUs, and whose wait for their hosts."""
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
    hardly, notes = report.hardly_used, []
    if hardly.job_count:
        notes.append(
            f"{count_text(hardly.job_count)} used whole GPUs less than {percent(HARDLY_USED_BELOW)}: "
            f"{amount(hardly.hours.booked)} GPU hours, {amount(hardly.hours.idle)} of them idle."
        )
    notes += idle_notes(report)
    for each in report.waiting[:SHOWN_USERS]:
        jobs, idle = count_text(each.job_count), amount(each.hours.idle)
        notes.append(f"{jobs} of {each.user}, {idle} GPU hours idle, waited for {each.waits_for}.")
    notes += [f"{verdict}: {RULES[verdict]}." for verdict in sorted({each.verdict for each in report.worst})]
    columns = ("job", "user", "GPU", "booked", "idle", "verdict", "request next time")
    return Section(
        title="Jobs with the most idle GPU hours", columns=columns, rows=rows, notes=notes or ("No job was seen idle.",)
    )


def idle_notes(report: Report) -> Iterator[str]:
    """Yield how many jobs did nothing at all for how long at a time, and what they held meanwhile."""
    for limit_s, which in zip(IDLE_S, ("Did nothing at all for over 15 min", "Of these, for over 2 h"), strict=True):
        if count := report.idle.job_counts.get(key := f"{limit_s:.0f}"):
            hours = amount(report.idle.hours[key])
            yield f"{which} at a time: {count_text(count)}, {hours} GPU hours."


def _decisions(report: Report) -> Section:
    """Return the most frequent reasons, and how many jobs were changed, and how."""
    counts = [
        f"{each.code}{f' to a {each.change}' if each.change else ''}: {count_text(each.count)} (mode {each.mode}, "
        f"{each.manager})"
        for each in report.decisions
    ]
    notes = [f"{'; '.join(counts)}." if counts else "No decision was recorded in this period."]
    # Without such jobs in this period, runs of earlier ones may still have been checked.
    if (unnamed := report.unnamed).jobs or unnamed.checked:
        notes.append(
            f"{count_text(unnamed.jobs)} named no model: {unnamed.estimated:,} with a history, {unnamed.shares:,} with "
            f"a share by it, {unnamed.withheld:,} with one only recorded; {part(unnamed.held, unnamed.checked)} of "
            f"{unnamed.checked:,} checked runs held."
        )
        notes.append(UNNAMED_RULE)
    reasons = [(each.reason, each.code, f"{each.count:,}") for each in report.reasons]
    return Section(title="Decisions", columns=("reason", "decision", "jobs"), rows=reasons, notes=notes)


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
    notes = [TRUE_RULE] if rows else []
    for name, each in (("given", report.promises_enforced), ("not given", report.promises_withheld)):
        if each != Promises():
            counts = f"{each.fulfilled:,} kept, {each.broken:,} broken, {each.unknown:,} unknown"
            notes.append(f"Promises to shares that were {name}: {counts}.")
    columns = ("model family", "figure", "runs", "observed/predicted", "inside")
    return Section(title="Predicted and observed", columns=columns, rows=rows, notes=(*notes, RULE))


def date(seconds: float) -> str:
    """Return the day, in UTC, of a time since 1970."""
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def day(seconds: float) -> str:
    """Return a time since 1970 for people."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds)) + " UTC"
