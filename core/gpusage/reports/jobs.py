"""The runs of a time, each once, and by their jobs: a requeued job has several, and so has one on several nodes.

Invariants:

1. What a node saw of a run stands in place of what the accounting has of it.
2. The GPUs of a run that no node saw are a run of their own, of which nothing was seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from gpusage.experience.finished_jobs import is_of_another_node, is_same_run, own_utilization
from gpusage.reports.amounts import gpu_count
from gpusage.store.rows import Observation, is_record_of
from gpusage_hooks.types import DecisionRecord, Usage
from gpusage_hooks.units import WHOLE_PERCENT

FindRecord = Callable[[str], DecisionRecord | None]
"""From the number of a decision to its record."""


def runs_by_job(observations: Iterable[Observation]) -> Collection[Sequence[Observation]]:
    """Return the runs of each job, in the order of *observations*."""
    jobs: dict[tuple[str, str], list[Observation]] = defaultdict(list)
    for each in observations:
        jobs[each.usage.manager, each.usage.job_id].append(each)
    return jobs.values()


def is_on_several_nodes(runs: Sequence[Observation]) -> bool:
    """Return whether one run among *runs*, those of one job, had GPUs on several nodes."""
    pairs = combinations((each.usage for each in runs), 2)
    return any(is_of_another_node(one, other) and is_same_run(one, other) for one, other in pairs)


def count_jobs(observations: Iterable[Observation]) -> int:
    """Return how many jobs *observations* are of."""
    return len(runs_by_job(observations))


def newest_seen(runs: Sequence[Observation], least_s: float) -> Observation:
    """Return the newest run of a job that shows what the job does on its GPU; where none does, the newest.

    Args:
        runs: Of one job, the newest first.
        least_s: A run that was sampled for less shows nothing.
    """
    return next((each for each in runs if own_utilization(each.usage, least_s) is not None), runs[0])


def with_accounting(
    observations: Sequence[Observation], accounted: Iterable[Usage], find_record: FindRecord
) -> tuple[Observation, ...]:
    """Return every run, the newest first.

    Args:
        observations: What nodes saw.
        accounted: What managers' accounting has of the same time.
        find_record: Knows the decision of a job that no node saw.
    """
    runs: dict[tuple[str, str], list[Usage]] = defaultdict(list)
    for usage in accounted:
        runs[usage.manager, usage.job_id].append(usage)
    seen: dict[Usage, list[Observation]] = {usage: [] for of_job in runs.values() for usage in of_job}
    every = []
    for each in observations:
        same = [
            usage for usage in runs.get((each.usage.manager, each.usage.job_id), ()) if is_same_run(usage, each.usage)
        ]
        if same:
            seen[max(same, key=lambda usage: _overlap_s(usage, each.usage))].append(each)
        else:
            every.append(each)
    for usage, of_run in seen.items():
        every += _joined(usage, of_run) if of_run else [Observation(usage=usage, decision=_record(usage, find_record))]
    return tuple(sorted(every, key=lambda each: each.usage.ended_at_s, reverse=True))


def _overlap_s(first: Usage, second: Usage) -> float:
    """Return how long both ran, less than 0 if neither: clocks differ, and a requeued job starts again soon."""
    return min(first.ended_at_s, second.ended_at_s) - max(first.started_at_s, second.started_at_s)


def _joined(usage: Usage, seen: Sequence[Observation]) -> Iterator[Observation]:
    """Yield what nodes saw of a run, and the rest of what the accounting has of it in *usage*."""
    # An older release's sampler did not report how many GPUs it saw.
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
    rest = (usage.gpu_count or 0.0) - counted
    if rest > 0 and usage.granted.share_percent == WHOLE_PERCENT:
        yield Observation(usage=replace(usage, number=seen[0].usage.number, gpu_count=rest), decision=seen[0].decision)


def _record(usage: Usage, find_record: FindRecord) -> DecisionRecord | None:
    record = find_record(usage.number) if usage.number else None
    return record if record is not None and is_record_of(usage, record) else None
