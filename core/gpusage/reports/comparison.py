"""The totals of a period, to compare them with those of the previous one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpusage.experience.finished_jobs import was_gpu_shared
from gpusage.reports.accuracy import Promises, count_promises
from gpusage.reports.amounts import Amounts, amounts_of, had_share, total
from gpusage.reports.jobs import count_jobs
from gpusage.store.rows import Observation

JOULES_PER_KWH = 3.6e6


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
