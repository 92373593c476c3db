"""The lines with which a report opens: what a director asks, and what an admin writes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpusage.reports.lines import Section, amount, capacity_hours, count_text, freed, part, slower
from gpusage.reports.report import Report
from gpusage.reports.summary import WEEK_S, PartitionTally
from gpusage_hooks.units import percent

LEAST_SHARES = 20
"""Withheld shares whose promise was checked; with fewer a partition has not shown enough to enforce there."""
MOST_BROKEN = 0.05
"""Of these: an interval of a price is to hold 19 of 20 runs on its worse side."""
SHOWN_WEEKS, SHOWN_JOBS, SHOWN_USERS = 6, 4, 8


def brief(report: Report) -> Section:
    """Return the five lines: use, gain, price, the jobs that were hurt, and the next step.

    Where figures mix several clusters, a line before them says so.
    """
    following = next_step(report.mode, report.enforce_in, report.partitions)
    notes = (f"Use: {_use(report)}", *_gain(report), f"Hurt: {_hurt(report)}", f"Next: {following}")
    return Section(title="In short", notes=(report.mixed_clusters, *notes) if report.mixed_clusters else notes)


def next_step(mode: str, enforce_in: Sequence[str], partitions: Sequence[PartitionTally]) -> str:
    """Return the next line to write into gpusage.toml, which has *mode* and *enforce_in*, and what it rests on."""
    if mode == "enforce" and not enforce_in:
        return "nothing to write: gpusage enforces in every partition."

    seen = [each for each in partitions if each.checks and each.partition not in enforce_in]
    enough = [each for each in seen if _checked(each) >= LEAST_SHARES]
    if not enough:
        most = max(map(_checked, seen), default=0)
        return f"observe on; one partition needs {LEAST_SHARES} shares that could be checked, and {most} is the most."

    best = min(enough, key=lambda each: (each.checks.get("broken", 0) / _checked(each), -_checked(each)))
    name, broken = best.partition or "of no known name", best.checks.get("broken", 0)
    users = sorted(best.users, key=lambda user: (-best.users[user], user))[:SHOWN_USERS]
    whose = f" ({', '.join(users)})" if users else ""
    shows = (
        f"of {count_text(best.job_count)} there {sum(best.checks.values()):,} would share, {broken:,} at risk{whose}, "
        f"{best.checks.get('unknown', 0):,} could not be checked"
    )
    if not best.partition or broken > MOST_BROKEN * _checked(best):
        return f"observe on; partition {name} is the safest: {shows}."
    names = ", ".join(f'"{each}"' for each in (*enforce_in, name))
    return f'mode = "enforce" and enforce_in = [{names}] in gpusage.toml: {shows}.'


def _checked(tally: PartitionTally) -> int:
    return tally.checks.get("kept", 0) + tally.checks.get("broken", 0)


def _use(report: Report) -> str:
    hours, of = report.hours, capacity_hours(report, report.since_s, report.until_s)
    unseen = f"{part(hours.unseen, hours.booked)} of the booked hours not seen"
    if not of:
        return (
            f"{amount(hours.booked)} GPU hours booked, {part(hours.used, hours.booked)} of them with a kernel, "
            f"{unseen}; no capacity is known here."
        )
    trend = [
        part(each.hours.used, capacity_hours(report, each.since_s, each.since_s + WEEK_S))
        for each in report.weeks[-SHOWN_WEEKS:]
    ]
    weeks = f"; used by week: {', '.join(trend)}" if len(trend) > 1 else ""
    booked, used = part(hours.booked, of), part(hours.used, of)
    return f"{report.gpu_count:,} GPUs have {amount(of)} hours: {booked} booked, {used} used, {unseen}{weeks}."


def _gain(report: Report) -> Iterator[str]:
    """Yield what shares freed or would have, and what that cost or would have."""
    enforced, possible, costs = report.totals.share_count, report.all_jobs.possible, report.costs
    gains, prices = [], []
    if enforced:
        least = report.hours.freed - costs.whole_hours + costs.least_whole_hours
        gains.append(
            f"{count_text(enforced)} on shares freed {amount(report.hours.freed)} GPU hours, {amount(least)} at worst"
        )
    if costs.least_whole_hours:
        typical, worst = (percent(costs.hours / whole - 1) for whole in (costs.whole_hours, costs.least_whole_hours))
        prices.append(f"jobs on shares took longer by {typical}, {worst} at worst")
    if possible is not None:
        gains.append(f"{possible.job_count:,} more could share and free {freed(possible, ' GPU hours')}")
        prices.append(f"the others would take longer by {slower(possible)}")
    if jobs := report.if_shared_count:
        nothing = "nothing yet; " * (not gains)
        gains.append(f"{nothing}{count_text(jobs)} would have had a part if GPUs could be shared")
    yield f"Freed: {'; '.join(gains) or 'nothing, for no job that was seen had a share or could have had one'}."
    yield f"Price, beside partners: {'; '.join(prices) or 'none'}."


def _hurt(report: Report) -> str:
    enforced, withheld = report.promises_enforced, report.promises_withheld
    if not enforced.broken and not withheld.broken:
        checked = enforced.fulfilled + withheld.fulfilled
        return f"none of {checked:,} jobs that could be checked." if checked else "no share could be checked."
    jobs = [f"{each.job_id} {each.job_name} of {each.user} {each.why}" for each in report.hurt[:SHOWN_JOBS]]
    more = ", and others" if len(report.hurt) > SHOWN_JOBS else ""
    return f"{enforced.broken:,} on shares, {withheld.broken:,} more would have been: {'; '.join(jobs)}{more}."
