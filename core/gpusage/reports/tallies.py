"""The tables of a report that count decisions, and GPU hours by type, utilization and period."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec

from gpusage.experience.finished_jobs import was_gpu_shared
from gpusage.reports.accuracy import Promises
from gpusage.reports.amounts import Amounts, amounts_of, had_share, total
from gpusage.reports.jobs import count_jobs
from gpusage.reports.joining import grouped
from gpusage.store.rows import Observation
from gpusage_hooks.types import Code, DecisionRecord

_NAME_OR_NUMBER = re.compile(r"([A-Za-z][\w-]*)|\d+(?:\.\d+)?")
JOULES_PER_KWH = 3.6e6


class DecisionTally(msgspec.Struct, frozen=True, kw_only=True):
    """Count of the decisions with the same code and mode.

    Attributes:
        change: What a rewrite puts in the request: ``share``, ``slice``, or the ``GPU type`` alone; else empty.
    """

    KEY: ClassVar = ("manager", "mode", "code", "change")
    manager: str
    mode: str
    code: str
    change: str
    count: int


class ReasonTally(msgspec.Struct, frozen=True, kw_only=True):
    """Count of the decisions with the same first reason; ``N`` stands for its numbers."""

    KEY: ClassVar = ("code", "reason")
    MOST: ClassVar = 1000
    code: str
    reason: str
    count: int

    @property
    def rank(self) -> tuple[int, str, str]:
        """Return the place in a table, the most frequent first."""
        return -self.count, self.code, self.reason


class GpuTally(msgspec.Struct, frozen=True, kw_only=True):
    """GPU hours of the runs on a GPU type.

    Attributes:
        gpu: Name from the node; empty if unknown.
        money: The hours in the site's money or weights; ``None`` without a price.
    """

    KEY: ClassVar = ("gpu",)
    gpu: str
    run_count: int
    hours: Amounts
    money: Amounts | None


def count_decisions(records: Sequence[DecisionRecord]) -> tuple[DecisionTally, ...]:
    """Count *records* by manager, mode and code."""
    # Sorted, so that tables of two reports have the same order.
    counts = Counter[tuple[str, str, str, str]]()
    for record in records:
        request, code = record.decision.request, record.decision.code
        change = "share" if request.mps_thread_percent else "slice" if request.slice_type else "GPU type"
        counts[record.manager, record.mode, code.value, change if code is Code.REWRITE else ""] += 1
    return tuple(
        DecisionTally(manager=manager, mode=mode, code=code, change=change, count=count)
        for (manager, mode, code, change), count in sorted(counts.items())
    )


def count_reasons(records: Sequence[DecisionRecord]) -> tuple[ReasonTally, ...]:
    """Count *records* by code and first reason, the most frequent first."""
    # Reasons differ in their figures: N for each number counts them as one. Numbers in names, such as
    # a100-sxm4-80gb, stay.
    counts = Counter(
        (record.decision.code.value, _NAME_OR_NUMBER.sub(lambda match: match[1] or "N", record.decision.reasons[0]))
        for record in records
        if record.decision.reasons
    )
    tallies = (ReasonTally(code=code, reason=reason, count=count) for (code, reason), count in counts.items())
    return tuple(sorted(tallies, key=lambda tally: tally.rank))


def tally_gpus(observations: Sequence[Observation], least_s: float) -> tuple[GpuTally, ...]:
    """Return the GPU hours of *observations* by GPU type, without money."""
    by_gpu = grouped((each.usage.gpu, amounts_of(each, least_s)) for each in observations)
    return tuple(
        GpuTally(gpu=gpu, run_count=len(runs), hours=total(runs), money=None) for gpu, runs in sorted(by_gpu.items())
    )


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """Energy of runs alone on their GPUs, from the GPUs' own counters.

    Attributes:
        kwh: Energy in the sampled time.
        booked_hours: GPU hours that these runs booked.
    """

    kwh: float
    booked_hours: float


class PeriodTotals(msgspec.Struct, frozen=True, kw_only=True):
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


def period_totals(observations: Sequence[Observation], promises: Promises, least_s: float) -> PeriodTotals:
    """Return the totals of *observations*, whose shares were given with *promises*."""
    return PeriodTotals(
        job_count=count_jobs(observations),
        user_count=len({each.usage.user for each in observations}),
        share_count=count_jobs(filter(had_share, observations)),
        hours=total(amounts_of(each, least_s) for each in observations),
        promises=promises,
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
