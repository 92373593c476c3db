"""Decisions and usage of a time -> a report, whole and frozen; it is shown as lines, as a page, or as JSON."""

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
    """How many decisions had one code in one mode."""

    manager: str
    mode: str
    code: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonTally:
    """How many decisions had one first reason; its numbers are shown as ``N``."""

    code: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTally:
    """What runs on one GPU type took.

    Attributes:
        gpu: As the node named it; empty where it did not.
        money: The hours in the site's money or weights; ``None`` where it has set no price.
    """

    gpu: str
    run_count: int
    hours: Amounts
    money: Amounts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The booked GPU hours of runs whose utilization lies in one band.

    Attributes:
        from_percent: The band's lower end; it is `BAND_PERCENT` wide.
    """

    from_percent: int
    booked_hours: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What happened from *since_s* to *until_s*, seconds since 1970.

    Attributes:
        previous_since_s: When the previous period began, which ended at *since_s*.
        user: Whose jobs alone; empty for everybody's.
        money: Of the GPU types that have a price, or else a weight; ``None`` where none has.
        currency: Which of the two that is.
        promises_enforced: To jobs that had a share.
        promises_withheld: To jobs that would have had one in mode ``enforce``.
        unnamed: What became of jobs that name no model.
        groups: What jobs took by user, account, partition and model.
        all_jobs: The same of all jobs.
        unseen: The same of what nobody saw.
        totals: Of the time.
        previous: Of the previous period, as long as this one; ``None`` where nothing is kept of it.
        hardly_used: The jobs that held whole GPUs and hardly used them.
        waiting: The users whose jobs wait for their hosts.
        unaccounted: Why the accounting of a manager was not read, a sentence each.
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
    unaccounted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The time that a report is of, seconds since 1970, and whose jobs; an empty *user* is everybody.

    Attributes:
        before_since_s: When the previous period began; ``None`` where it is as long as this one.
    """

    since_s: float
    until_s: float
    user: str = ""
    before_since_s: float | None = None

    @property
    def previous_since_s(self) -> float:
        """Return when the previous period began."""
        return 2 * self.since_s - self.until_s if self.before_since_s is None else self.before_since_s


def period_of_month(year: int, month: int, now_s: float) -> Period:
    """Return a month of this host's time, as far as it is over, with the month before it."""
    # mktime takes the months 0 and 13, too.
    starts_s = [time.mktime((year, at, 1, 0, 0, 0, 0, 0, -1)) for at in (month - 1, month, month + 1)]
    before_s, since_s, end_s = starts_s
    return Period(since_s=since_s, until_s=min(end_s, now_s), before_since_s=before_s)


def report_of(
    records: Sequence[DecisionRecord],
    observations: Sequence[Observation],
    rates: Rates,
    period: Period,
    rules: ReportRules = USUAL_RULES,
) -> Report:
    """Return the report.

    Args:
        records: The decisions of that period, and maybe of the previous one.
        observations: The runs that ended in that period, and maybe of the previous one, the newest first.
        rates: By the names of GPUs as nodes report them.
        period: Which time that is, and whose jobs they are.
        rules: What counts as seen, and by what shares are priced.
    """
    least_s = rules.least_sampled_s
    previous = [each for each in observations if each.usage.ended_at_s < period.since_s]
    observations = [each for each in observations if each.usage.ended_at_s >= period.since_s]
    records = [each for each in records if each.decided_at_s >= period.since_s]
    gpus = _by_gpu(observations, rates.per_hour, least_s)
    of_shares, withheld = count_promises(observations, least_s)
    breakdown = break_down(observations, rules)
    priced = [each.money for each in gpus if each.money is not None]
    return Report(
        since_s=period.since_s,
        until_s=period.until_s,
        previous_since_s=period.previous_since_s,
        user=period.user,
        decisions=_decisions(records),
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
        promises_enforced=of_shares,
        promises_withheld=withheld,
        unnamed=count_unnamed_jobs(records, observations, least_s),
        groups=breakdown.groups,
        all_jobs=breakdown.all_jobs,
        unseen=breakdown.unseen,
        totals=period_totals(observations, least_s),
        previous=period_totals(previous, least_s) if previous else None,
        hardly_used=hardly_used_jobs(observations, least_s),
        waiting=waiting_users(observations, least_s),
    )


def _decisions(records: Sequence[DecisionRecord]) -> tuple[DecisionTally, ...]:
    counts = Counter((record.manager, record.mode, record.decision.code.value) for record in records)
    return tuple(
        DecisionTally(manager=manager, mode=mode, code=code, count=count)
        for (manager, mode, code), count in sorted(counts.items())
    )


def _reasons(records: Sequence[DecisionRecord]) -> tuple[ReasonTally, ...]:
    counts = Counter(
        (record.decision.code.value, _without_numbers(record.decision.reasons[0]))
        for record in records
        if record.decision.reasons
    )
    first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_REASONS]
    return tuple(ReasonTally(code=code, reason=reason, count=count) for (code, reason), count in first)


def _without_numbers(reason: str) -> str:
    """Return *reason* with N for each number; names such as ``a100-sxm4-80gb`` stay."""
    return _NAME_OR_NUMBER.sub(lambda match: match[1] or "N", reason)


def _by_gpu(observations: Sequence[Observation], per_hour: Mapping[str, float], least_s: float) -> tuple[GpuTally, ...]:
    by_gpu: dict[str, list[Amounts]] = defaultdict(list)
    for each in observations:
        by_gpu[each.usage.gpu].append(amounts_of(each, least_s))
    return tuple(_of_gpu(gpu, by_gpu[gpu], per_hour.get(gpu)) for gpu in sorted(by_gpu))


def _of_gpu(gpu: str, runs: Sequence[Amounts], price: float | None) -> GpuTally:
    hours = total(runs)
    money = None if price is None else hours.times(price)
    return GpuTally(gpu=gpu, run_count=len(runs), hours=hours, money=money)


def _bands(observations: Sequence[Observation], least_s: float) -> tuple[Band, ...]:
    """Return how the booked GPU hours are spread over utilization, where that was seen."""
    hours = [0.0] * (100 // BAND_PERCENT)
    for each in observations:
        utilization = own_utilization(each.usage, least_s)
        if utilization is not None:
            hours[min(int(100 * utilization / BAND_PERCENT), len(hours) - 1)] += amounts_of(each, least_s).booked
    if not any(hours):
        return ()
    return tuple(Band(from_percent=BAND_PERCENT * at, booked_hours=each) for at, each in enumerate(hours))


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """What GPUs consumed by their own counters, of runs that were alone there: a counter is the whole GPU's.

    Attributes:
        kwh: While runs were sampled.
        booked_hours: The GPU hours that these runs booked.
    """

    kwh: float
    booked_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodTotals:
    """What the jobs of a time took, and what became of promises to them.

    Attributes:
        share_count: How many jobs had a share in place of a whole GPU.
        promises: To these.
        energy: ``None`` where no counter was read of a run that was alone.
    """

    job_count: int
    user_count: int
    share_count: int
    hours: Amounts
    promises: Promises
    energy: Energy | None


def period_totals(observations: Sequence[Observation], least_s: float) -> PeriodTotals:
    """Return what *observations* add up to."""
    return PeriodTotals(
        job_count=count_jobs(observations),
        user_count=len({each.usage.user for each in observations}),
        share_count=count_jobs(filter(had_share, observations)),
        hours=total(amounts_of(each, least_s) for each in observations),
        promises=count_promises(observations, least_s)[0],
        energy=_energy(observations, least_s),
    )


def _energy(observations: Iterable[Observation], least_s: float) -> Energy | None:
    metered = [
        (each.usage.energy_j, amounts_of(each, least_s).booked)
        for each in observations
        if each.usage.energy_j is not None and each.usage.sampled_s and not was_gpu_shared(each.usage)
    ]
    if not metered:
        return None
    joules, hours = map(sum, zip(*metered, strict=True))
    return Energy(kwh=joules / JOULES_PER_KWH, booked_hours=hours)
