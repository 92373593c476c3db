"""The runs of a period, each once, and by their jobs: a requeued job has several, as has a job on several nodes.

Invariants:

1. A node's samples of a run replace the accounting's row of the same run.
2. GPUs of a run that no node sampled are a run of their own, wholly unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from gpusage.experience.finished_jobs import is_of_another_node, is_same_run, own_utilization
from gpusage.reports.amounts import gpu_count
from gpusage.reports.joining import grouped
from gpusage.store.rows import Observation, is_record_of
from gpusage_hooks.types import DecisionRecord, Usage
from gpusage_hooks.units import WHOLE_PERCENT

FindRecord = Callable[[str], DecisionRecord | None]
"""From the number of a decision to its record."""


def runs_by_job(observations: Iterable[Observation]) -> Collection[Sequence[Observation]]:
    """Return the runs of each job, in the order of *observations*."""
    return grouped(((each.usage.manager, each.usage.job_id), each) for each in observations).values()


def is_on_several_nodes(runs: Sequence[Observation]) -> bool:
    """Return whether a run among *runs*, all of the same job, had GPUs on several nodes."""
    pairs = combinations((each.usage for each in runs), 2)
    return any(is_of_another_node(one, other) and is_same_run(one, other) for one, other in pairs)


def count_jobs(observations: Iterable[Observation]) -> int:
    """Return the number of jobs in *observations*."""
    return len(runs_by_job(observations))


def newest_seen(runs: Sequence[Observation], least_s: float) -> Observation:
    """Return the newest run with a utilization of its own; without any, the newest run.

    Args:
        runs: Runs of a job, the newest first.
        least_s: A run with less sampled time shows nothing.
    """
    return next((each for each in runs if own_utilization(each.usage, least_s) is not None), runs[0])


def with_accounting(
    observations: Sequence[Observation], accounted: Iterable[Usage], find_record: FindRecord
) -> tuple[Observation, ...]:
    """Return every run, the newest first.

    Args:
        observations: Runs that nodes sampled.
        accounted: Rows of the managers' accounting of the same period.
        find_record: Finds the decision of a job that no node sampled.
    """
    runs = grouped(((usage.manager, usage.job_id), usage) for usage in accounted)
    seen: dict[Usage, list[Observation]] = {usage: [] for of_job in runs.values() for usage in of_job}

    every = []
    for each in observations:
        key = (each.usage.manager, each.usage.job_id)
        same = [usage for usage in runs.get(key, ()) if is_same_run(usage, each.usage)]
        if not same:
            every.append(each)
            continue

        # Clocks differ and a requeued job starts again soon, so two rows may match: the longest overlap wins,
        # below 0 where the samples lie between both.
        def overlap_s(usage: Usage, sampled: Usage = each.usage) -> float:
            return min(usage.ended_at_s, sampled.ended_at_s) - max(usage.started_at_s, sampled.started_at_s)

        seen[max(same, key=overlap_s)].append(each)

    for usage, of_run in seen.items():
        if of_run:
            every += _joined(usage, of_run)
        else:
            record = find_record(usage.number) if usage.number else None
            is_own = record is not None and is_record_of(usage, record)
            every.append(Observation(usage=usage, decision=record if is_own else None))
    return tuple(sorted(every, key=lambda each: each.usage.ended_at_s, reverse=True))


def _joined(usage: Usage, seen: Sequence[Observation]) -> Iterator[Observation]:
    """Yield the sampled runs *seen*, completed from the accounting's *usage*, and the rest of its GPUs."""
    # A usage without a GPU count is of the whole run, if no other node reported one.
    is_uncounted = len(seen) == 1 and seen[0].usage.gpu_count is None
    counted = 0.0
    for each in seen:
        completed = replace(
            each.usage,
            account=usage.account or each.usage.account,
            partition=usage.partition or each.usage.partition,
            gpu_count=usage.gpu_count if is_uncounted else each.usage.gpu_count,
        )
        joined = replace(each, usage=completed)
        counted += gpu_count(joined)
        yield joined

    # Some nodes of a job may have no sampler. A share is of one GPU, so its samples leave no rest.
    rest = (usage.gpu_count or 0.0) - counted
    if rest > 0 and usage.granted.share_percent == WHOLE_PERCENT:
        yield Observation(usage=replace(usage, number=seen[0].usage.number, gpu_count=rest), decision=seen[0].decision)
