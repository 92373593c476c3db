"""What a site decides by: the use of its GPUs week by week, whom shares hurt, and what each partition's jobs show.

Invariants:

1. Every row adds up with others of its key, so a report on a long time is the sum of those on its parts.
2. Withheld shares are judged by the same rule as given ones: as far as the job's own run shows it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec

from gpusage.reports import amounts
from gpusage.reports.accuracy import Promised
from gpusage.reports.amounts import Amounts, amounts_of, had_share, total, was_share_withheld
from gpusage.reports.jobs import count_jobs, runs_by_job
from gpusage.reports.joining import grouped
from gpusage.store.rows import Observation
from gpusage_hooks.units import DAY_S, HOUR_S

WEEK_S, FIRST_MONDAY_S = 7 * DAY_S, 4 * DAY_S
"""1970 began on a Thursday."""
IDLE_S = (900.0, 7200.0)
"""A job that idles for so long may have been forgotten; after the second time it surely was."""


class WeekTally(msgspec.Struct, frozen=True, kw_only=True):
    """GPU hours of the jobs that ended in a week.

    Attributes:
        since_s: Its Monday's midnight by UTC, seconds since 1970.
    """

    KEY: ClassVar = ("since_s",)
    since_s: float
    job_count: int
    hours: Amounts


class HurtJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose share broke its promise, or would have broken it.

    Attributes:
        had_share: Whether it had the share; else its site's mode withheld it.
        why: What shows it, one clause.
    """

    KEY: ClassVar = ("manager", "job_id")
    MOST: ClassVar = 10
    manager: str
    job_id: str
    user: str
    job_name: str
    had_share: bool
    why: str
    booked_hours: float

    @property
    def rank(self) -> tuple[bool, float, str]:
        """Return the place in a table: what happened first, then the longest; the number breaks ties."""
        return not self.had_share, -self.booked_hours, self.job_id


class PartitionTally(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a partition, and the shares that its site's mode withheld.

    Attributes:
        checks: Of these shares, those that would have been ``kept``, ``broken`` or ``unknown``.
        users: Whose would have been broken, with how many.
    """

    KEY: ClassVar = ("partition",)
    partition: str
    job_count: int
    checks: Mapping[str, int]
    users: Mapping[str, int]


class ShareCosts(msgspec.Struct, frozen=True, kw_only=True):
    """GPU hours of jobs on shares that were given.

    Attributes:
        hours: That they took, each with a whole GPU counted.
        whole_hours: That they would have taken on whole GPUs, by the prices beside partners.
        least_whole_hours: The same by the upper ends of these prices.
    """

    hours: float = 0.0
    whole_hours: float = 0.0
    least_whole_hours: float = 0.0


class IdleJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that for a time ran no kernel, hardly any program and read nothing, as far as samples show.

    Attributes:
        job_counts: Those that did so for longer than each of `IDLE_S`.
        hours: Their GPU hours in the longest such time of each.
    """

    job_counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    hours: Mapping[str, float] = msgspec.field(default_factory=dict)


def tally_weeks(observations: Sequence[Observation], least_s: float) -> tuple[WeekTally, ...]:
    """Return the GPU hours of *observations* by the week in which they ended."""
    members = grouped((week_of(each.usage.ended_at_s), each) for each in observations)
    return tuple(
        WeekTally(since_s=since_s, job_count=count_jobs(runs), hours=total(amounts_of(run, least_s) for run in runs))
        for since_s, runs in sorted(members.items())
    )


def week_of(time_s: float) -> float:
    """Return the midnight, by UTC, at which the week of *time_s* began."""
    return time_s - (time_s - FIRST_MONDAY_S) % WEEK_S


def hurt_jobs(promised: Iterable[Promised], least_s: float) -> tuple[HurtJob, ...]:
    """Return the jobs of *promised* whose shares broke their promises, or would have."""
    broken = [each for each, is_held in promised if is_held is False]
    jobs = []
    for runs in runs_by_job(each for each in broken if had_share(each) or was_share_withheld(each)):
        usage = runs[0].usage
        jobs.append(
            HurtJob(
                manager=usage.manager,
                job_id=usage.job_id,
                user=usage.user,
                job_name=usage.job_name,
                had_share=any(map(had_share, runs)),
                why=_why_broken(runs[0]),
                booked_hours=sum(amounts_of(run, least_s).booked for run in runs),
            )
        )
    return tuple(sorted(jobs, key=lambda job: job.rank)[: HurtJob.MOST])


def tally_partitions(observations: Sequence[Observation], promised: Iterable[Promised]) -> tuple[PartitionTally, ...]:
    """Return what the jobs of each partition, of which some were *promised* a price, show of withheld shares."""
    checks: dict[str, Counter[str]] = defaultdict(Counter)
    users: dict[str, Counter[str]] = defaultdict(Counter)
    checked = {id(each): is_held for each, is_held in promised}
    for each in filter(was_share_withheld, observations):
        result = {True: "kept", False: "broken", None: "unknown"}[checked.get(id(each))]
        checks[each.usage.partition][result] += 1
        if result == "broken":
            users[each.usage.partition][each.usage.user] += 1

    members = grouped((each.usage.partition, each) for each in observations)
    return tuple(
        PartitionTally(partition=name, job_count=count_jobs(runs), checks=dict(checks[name]), users=dict(users[name]))
        for name, runs in sorted(members.items())
    )


def share_costs(observations: Iterable[Observation]) -> ShareCosts:
    """Return what the shares in *observations* cost their jobs, but for those that lacked memory."""
    hours, whole_hours, least_whole_hours = 0.0, 0.0, 0.0
    for each in filter(had_share, observations):
        if each.usage.outcome == "out_of_memory":
            continue
        price, took = amounts.expected_slowdown(each), amounts.gpu_hours(each)
        hours, whole_hours = hours + took, whole_hours + took / price.value
        least_whole_hours += took / price.high
    return ShareCosts(hours=hours, whole_hours=whole_hours, least_whole_hours=least_whole_hours)


def idle_jobs(observations: Sequence[Observation]) -> IdleJobs:
    """Return the jobs of *observations* that were idle for long."""
    # Where nobody knows what a run did on its host, nobody knows whether it was idle: it is in no count.
    lengths = [(each, idle_s) for each in observations if (idle_s := each.usage.longest_idle_s) is not None]
    by_length = {f"{limit_s:.0f}": [pair for pair in lengths if pair[1] > limit_s] for limit_s in IDLE_S}
    return IdleJobs(
        job_counts={limit: count_jobs(each for each, _ in pairs) for limit, pairs in by_length.items()},
        hours={
            limit: sum(amounts.gpu_count(each) * idle_s / HOUR_S for each, idle_s in pairs)
            for limit, pairs in by_length.items()
        },
    )


def _why_broken(observed: Observation) -> str:
    usage, record = observed.usage, observed.decision
    need = record.decision.need if record is not None else None
    if usage.outcome == "out_of_memory":
        return "ran out of memory"
    if need is not None and (usage.memory_bytes or 0) > need.share_memory_bytes:
        return "took more memory than its share has"
    return "took longer than promised" if had_share(observed) else "was busier than predicted"
