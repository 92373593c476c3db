"""Decisions and usage of a period -> a frozen report, shown as lines, as a page, or as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import asdict, replace

from gpusage.reports import accuracy, summary, tallies, verdicts
from gpusage.reports.amounts import Amounts, Currency, Rates, total
from gpusage.reports.breakdown import USUAL_RULES, Breakdown, ReportRules, break_down, with_freed
from gpusage.store.rows import Observation
from gpusage_hooks.types import DecisionRecord

MOST_REASONS = 12


class Report(Breakdown, frozen=True, kw_only=True):
    """Decisions and usage from *since_s* to *until_s*, seconds since 1970.

    Attributes:
        previous_since_s: Start of the previous period, which ended at *since_s*.
        user: The only user of these jobs; empty for everybody.
        money: Sum over the GPU types with a price, or else with a weight; ``None`` where no type has either.
        currency: Unit of *money*.
        promises_enforced: Promises to jobs with a share.
        promises_withheld: Promises to jobs that would have had a share in mode ``enforce``.
        unnamed: Counts of jobs that name no model.
        totals: Totals of this period.
        previous: Totals of the previous period; ``None`` where the store has nothing of it.
        hardly_used: Jobs that held whole GPUs and hardly used them.
        waiting: Users whose jobs wait for their hosts.
        if_shared_count: Decisions on jobs for which a share would have been enough, had their GPUs been shared.
        unaccounted: Sentences on accounting that could not be read.
        mixed_clusters: Says where other clusters' jobs are in the figures; empty where none are.
        weeks: GPU hours by week.
        hurt: Jobs whose shares broke their promises, or would have.
        partitions: What the jobs of each partition show of withheld shares.
        costs: What the shares that were given cost.
        idle: Jobs that were idle for long.
        day_gpu_counts: GPUs of the clusters on the days for which gpusaged noted them, by when each began.
        gpu_count: GPUs of the clusters today; 0 if unknown.
        mode: The site's mode today.
        enforce_in: As in `Configuration`.
    """

    since_s: float = 0.0
    until_s: float = 0.0
    previous_since_s: float = 0.0
    user: str = ""
    decisions: tuple[tallies.DecisionTally, ...]
    reasons: tuple[tallies.ReasonTally, ...]
    run_count: int
    hours: Amounts
    money: Amounts | None = None
    gpus: tuple[tallies.GpuTally, ...]
    worst: tuple[verdicts.Wasted, ...]
    trueness: tuple[accuracy.PredictionAccuracy, ...]
    promises_enforced: accuracy.Promises
    promises_withheld: accuracy.Promises
    unnamed: accuracy.UnnamedJobs
    totals: tallies.PeriodTotals
    previous: tallies.PeriodTotals | None = None
    hardly_used: verdicts.HardlyUsed
    waiting: tuple[verdicts.WaitingUser, ...]
    currency: Currency | None = None
    if_shared_count: int = 0
    unaccounted: tuple[str, ...] = ()
    mixed_clusters: str = ""
    weeks: tuple[summary.WeekTally, ...] = ()
    hurt: tuple[summary.HurtJob, ...] = ()
    partitions: tuple[summary.PartitionTally, ...] = ()
    costs: summary.ShareCosts = summary.ShareCosts()
    idle: summary.IdleJobs = summary.IdleJobs()
    day_gpu_counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    gpu_count: int = 0
    mode: str = ""
    enforce_in: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Time span of a report, seconds since 1970, and its user; an empty *user* is everybody.

    Attributes:
        before_since_s: Start of the previous period; ``None`` where both periods are equally long.
    """

    since_s: float
    until_s: float
    user: str = ""
    before_since_s: float | None = None

    @property
    def previous_since_s(self) -> float:
        """Return the start of the previous period, which ended where this period begins."""
        return 2 * self.since_s - self.until_s if self.before_since_s is None else self.before_since_s


def period_of_month(year: int, month: int, now_s: float) -> Period:
    """Return a month in this host's time zone up to *now_s*, and the month before it."""
    # mktime normalizes the months 0 and 13; -1 has it find out about summer time.
    before_s, since_s, end_s = (time.mktime((year, at, 1, 0, 0, 0, 0, 0, -1)) for at in (month - 1, month, month + 1))
    return Period(since_s=since_s, until_s=min(end_s, now_s), before_since_s=before_s)


def report_of(
    records: Sequence[DecisionRecord],
    observations: Sequence[Observation],
    rates: Rates,
    period: Period,
    rules: ReportRules = USUAL_RULES,
) -> Report:
    """Return the report of *period*.

    Args:
        records: Decisions of this and maybe of the previous period.
        observations: Runs that ended in this and maybe in the previous period, the newest first.
        rates: Prices by the nodes' names of GPUs.
        period: Time span and user.
        rules: Least sampled time, and rules for prices of shares.
    """
    # A run counts where it ended, so that no run counts in two periods.
    previous = [each for each in observations if each.usage.ended_at_s < period.since_s]
    observations = [each for each in observations if each.usage.ended_at_s >= period.since_s]
    records = [each for each in records if each.decided_at_s >= period.since_s]
    before = part_of([], previous, rules) if previous else None
    return finished(part_of(records, observations, rules), before, rates, period)


def part_of(records: Sequence[DecisionRecord], observations: Sequence[Observation], rules: ReportRules) -> Report:
    """Return a part of a report, to be joined with others and `finished`.

    Args:
        records: Some decisions.
        observations: Some runs, all of the same jobs and the newest first.
        rules: As in `report_of`.
    """
    least_s = rules.least_sampled_s
    gpus = tallies.tally_gpus(observations, least_s)
    promised = [*accuracy.runs_with_promise(observations, least_s)]
    enforced, withheld = accuracy.count_promises(promised)
    return Report(
        **asdict(break_down(observations, rules)),
        decisions=tallies.count_decisions(records),
        if_shared_count=sum(bool(record.decision.if_shared) for record in records),
        reasons=tallies.count_reasons(records),
        run_count=len(observations),
        hours=total(each.hours for each in gpus),
        gpus=gpus,
        worst=verdicts.most_idle_jobs(observations, least_s),
        trueness=accuracy.prediction_accuracy(observations, least_s),
        promises_enforced=enforced,
        promises_withheld=withheld,
        unnamed=accuracy.count_unnamed_jobs(records, observations, least_s),
        totals=tallies.period_totals(observations, enforced, least_s),
        hardly_used=verdicts.hardly_used_jobs(observations, least_s),
        waiting=verdicts.waiting_users(observations, least_s),
        weeks=summary.tally_weeks(observations, least_s),
        hurt=summary.hurt_jobs(promised, least_s),
        partitions=summary.tally_partitions(observations, promised),
        costs=summary.share_costs(observations),
        idle=summary.idle_jobs(observations),
    )


def finished(part: Report, before: Report | None, rates: Rates, period: Period) -> Report:
    """Return the report of *period*: the sum of its parts with what rests on all of them.

    Args:
        part: Sum of all parts of the period.
        before: Sum of the parts of the previous period; ``None`` where there is nothing of it.
        rates: Prices by the nodes' names of GPUs.
        period: Time span and user.
    """
    prices = {each.gpu: rates.per_hour.get(each.gpu) for each in part.gpus}
    # A GPU type without a price has hours and no money, and the sum of money leaves it out.
    gpus = tuple(
        each if (price := prices[each.gpu]) is None else replace(each, money=each.hours.times(price))
        for each in part.gpus
    )
    # Without any price there is no sum, not a sum of 0.
    priced = [each.money for each in gpus if each.money is not None]
    totals, previous = (
        replace(each.totals, user_count=len(each.groups["user"])) if each is not None else None
        for each in (part, before)
    )
    return replace(
        with_freed(part),
        since_s=period.since_s,
        until_s=period.until_s,
        previous_since_s=period.previous_since_s,
        user=period.user,
        reasons=part.reasons[:MOST_REASONS],
        money=total(priced) if priced else None,
        currency=rates.currency if priced else None,
        gpus=gpus,
        trueness=tuple(replace(accuracy.with_quartiles(each), ratios={}) for each in part.trueness),
        totals=totals,
        previous=previous,
        waiting=part.waiting[: verdicts.WORST_COUNT],
    )
