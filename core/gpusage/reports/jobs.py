"""The runs of a time by their jobs: a requeued job has several, and so has one on several nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations

from gpusage.experience.finished_jobs import is_of_another_node, is_same_run, own_utilization
from gpusage.store.rows import Observation


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
