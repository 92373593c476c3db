"""Decisions and usage of a period -> a frozen report, shown as lines, as a page, or as JSON."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpusage.experience.finished_jobs import own_utilization, was_gpu_shared
from gpusage.reports.accuracy import (
    PredictionAccuracy,
    Promises,
    UnnamedJobs,
    count_promises,
    count_unnamed_jobs,
    prediction_accuracy,
)
from gpusage.reports.amounts import Amounts, Currency, Rates, amounts_of, had_share, total
from gpusage.reports.breakdown import USUAL_RULES, Dimension, GroupTally, ReportRules, break_down
from gpusage.reports.jobs import count_jobs
from gpusage.reports.verdicts import (
    HardlyUsed,
    VerdictTally,
    WaitingUser,
    Wasted,
    hardly_used_jobs,
    most_idle_jobs,
    tally_verdicts,
    waiting_users,
)
from gpusage.store.rows import Observation
from gpusage_hooks.types import DecisionRecord

MOST_REASONS = 12
BAND_PERCENT = 10
_NAME_OR_NUMBER = re.compile(r"([A-Za-z][\w-]*)|\d+(?:\.\d+)?")
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTally:
    """Count of the decisions with the same code and mode."""

    manager: str
    mode: str
    code: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonTally:
    """Count of the decisions with the same first reason; ``N`` stands for its numbers."""

    code: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTally:
    """GPU hours of the runs on a GPU type.

    Attributes:
        gpu: Name from the node; empty if unknown.
        money: The hours in the site's money or weights; ``None`` without a price.
    """

    gpu: str
    run_count: int
    hours: Amounts
    money: Amounts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The booked GPU hours of runs with utilizations in a band.

    Attributes:
        from_percent: The band's lower end; it is `BAND_PERCENT` wide.
    """

    from_percent: int
    booked_hours: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions and usage from *since_s* to *until_s*, seconds since 1970.

    Attributes:
        previous_since_s: Start of the previous period, which ended at *since_s*.
        user: The only user of these jobs; empty for everybody.
        money: Sum over the GPU types with a price, or else with a weight; ``None`` where no type has either.
        currency: Unit of *money*.
        promises_enforced: Promises to jobs with a share.
        promises_withheld: Promises to jobs that would have had a share in mode ``enforce``.
        unnamed: Counts of jobs that name no model.
        groups: GPU hours by user, account, partition and model.
        all_jobs: GPU hours of all jobs.
        unseen: GPU hours of runs that nobody sampled.
        totals: Totals of this period.
        previous: Totals of the previous period; ``None`` where the store has nothing of it.
        hardly_used: Jobs that held whole GPUs and hardly used them.
        waiting: Users whose jobs wait for their hosts.
        if_shared_count: Decisions on jobs for which a share would have been enough, had their GPUs been shared.
        unaccounted: Sentences on accounting that could not be read.
    """

    since_s: float
    until_s: float
    previous_since_s: float
    user: str
    decisions: tuple[DecisionTally, ...]
    reasons: tuple[ReasonTally, ...]
    run_count: int
    hours: Amounts
    money: Amounts | None
    gpus: tuple[GpuTally, ...]
    bands: tuple[Band, ...]
    verdicts: tuple[VerdictTally, ...]
    worst: tuple[Wasted, ...]
    trueness: tuple[PredictionAccuracy, ...]
    promises_enforced: Promises
    promises_withheld: Promises
    unnamed: UnnamedJobs
    groups: Mapping[Dimension, tuple[GroupTally, ...]]
    all_jobs: GroupTally
    unseen: GroupTally
    totals: PeriodTotals
    previous: PeriodTotals | None
    hardly_used: HardlyUsed
    waiting: tuple[WaitingUser, ...]
    currency: Currency | None = None
    if_shared_count: int = 0
    unaccounted: tuple[str, ...] = ()


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
    least_s = rules.least_sampled_s

    # A run counts where it ended, so that no run counts in two periods.
    previous = [each for each in observations if each.usage.ended_at_s < period.since_s]
    observations = [each for each in observations if each.usage.ended_at_s >= period.since_s]
    records = [each for each in records if each.decided_at_s >= period.since_s]

    gpus = _by_gpu(observations, rates.per_hour, least_s)
    enforced, withheld = count_promises(observations, least_s)
    groups, all_jobs, unseen = break_down(observations, rules)

    # Without any price there is no sum, not a sum of 0.
    priced = [each.money for each in gpus if each.money is not None]
    return Report(
        since_s=period.since_s,
        until_s=period.until_s,
        previous_since_s=period.previous_since_s,
        user=period.user,
        decisions=_decisions(records),
        if_shared_count=sum(bool(record.decision.if_shared) for record in records),
        reasons=_reasons(records),
        run_count=len(observations),
        hours=total(each.hours for each in gpus),
        money=total(priced) if priced else None,
        currency=rates.currency if priced else None,
        gpus=gpus,
        bands=_bands(observations, least_s),
        verdicts=tally_verdicts(observations, least_s),
        worst=most_idle_jobs(observations, least_s),
        trueness=prediction_accuracy(observations, least_s),
        promises_enforced=enforced,
        promises_withheld=withheld,
        unnamed=count_unnamed_jobs(records, observations, least_s),
        groups=groups,
        all_jobs=all_jobs,
        unseen=unseen,
        totals=period_totals(observations, least_s),
        previous=period_totals(previous, least_s) if previous else None,
        hardly_used=hardly_used_jobs(observations, least_s),
        waiting=waiting_users(observations, least_s),
    )


def _decisions(records: Sequence[DecisionRecord]) -> tuple[DecisionTally, ...]:
    # Sorted, so that tables of two reports have the same order.
    counts = Counter((record.manager, record.mode, record.decision.code.value) for record in records)
    return tuple(
        DecisionTally(manager=manager, mode=mode, code=code, count=count)
        for (manager, mode, code), count in sorted(counts.items())
    )


def _reasons(records: Sequence[DecisionRecord]) -> tuple[ReasonTally, ...]:
    # Reasons differ in their figures: N for each number counts them as one. Numbers in names, such as
    # a100-sxm4-80gb, stay.
    counts = Counter(
        (record.decision.code.value, _NAME_OR_NUMBER.sub(lambda match: match[1] or "N", record.decision.reasons[0]))
        for record in records
        if record.decision.reasons
    )
    first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_REASONS]
    return tuple(ReasonTally(code=code, reason=reason, count=count) for (code, reason), count in first)


def _by_gpu(observations: Sequence[Observation], per_hour: Mapping[str, float], least_s: float) -> tuple[GpuTally, ...]:
    by_gpu: dict[str, list[Amounts]] = defaultdict(list)
    for each in observations:
        by_gpu[each.usage.gpu].append(amounts_of(each, least_s))

    # A GPU type without a price has hours and no money, and the sum of money leaves it out.
    tallies = []
    for gpu, runs in sorted(by_gpu.items()):
        hours, price = total(runs), per_hour.get(gpu)
        money = None if price is None else hours.times(price)
        tallies.append(GpuTally(gpu=gpu, run_count=len(runs), hours=hours, money=money))
    return tuple(tallies)


def _bands(observations: Sequence[Observation], least_s: float) -> tuple[Band, ...]:
    """Return the histogram of booked GPU hours over utilization; empty where no utilization was seen."""
    hours = [0.0] * (100 // BAND_PERCENT)
    for each in observations:
        utilization = own_utilization(each.usage, least_s)
        if utilization is not None:
            # 100 % belongs to the last band.
            hours[min(int(100 * utilization / BAND_PERCENT), len(hours) - 1)] += amounts_of(each, least_s).booked
    if not any(hours):
        return ()

    return tuple(Band(from_percent=BAND_PERCENT * at, booked_hours=each) for at, each in enumerate(hours))


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy of runs alone on their GPUs, from the GPUs' own counters.

    Attributes:
        kwh: Energy in the sampled time.
        booked_hours: GPU hours that these runs booked.
    """

    kwh: float
    booked_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodTotals:
    """Totals of the jobs of a period.

    Attributes:
        share_count: Jobs with a share in place of a whole GPU.
        promises: Promises to these jobs.
        energy: Metered energy; ``None`` where no run alone on a GPU has a counter.
    """

    job_count: int
    user_count: int
    share_count: int
    hours: Amounts
    promises: Promises
    energy: Energy | None


def period_totals(observations: Sequence[Observation], least_s: float) -> PeriodTotals:
    """Return the totals of *observations*."""
    return PeriodTotals(
        job_count=count_jobs(observations),
        user_count=len({each.usage.user for each in observations}),
        share_count=count_jobs(filter(had_share, observations)),
        hours=total(amounts_of(each, least_s) for each in observations),
        promises=count_promises(observations, least_s)[0],
        energy=_energy(observations, least_s),
    )


def _energy(observations: Iterable[Observation], least_s: float) -> Energy | None:
    # The counter is the whole GPU's: of a run with partners nobody knows its part.
    metered = [
        (each.usage.energy_j, amounts_of(each, least_s).booked)
        for each in observations
        if each.usage.energy_j is not None and each.usage.sampled_s and not was_gpu_shared(each.usage)
    ]
    if not metered:
        return None
    # Energy beside the hours that it is of: most clusters meter only some of their GPUs.
    joules, hours = map(sum, zip(*metered, strict=True))
    return Energy(kwh=joules / JOULES_PER_KWH, booked_hours=hours)
