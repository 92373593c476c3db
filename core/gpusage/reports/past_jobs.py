"""What jobs held before gpusage was there, as a workload manager's own accounting has it -> runs of a report.

Invariant: a row of the accounting that is no job that ended on GPUs is counted, with its reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpusage.experience.finished_jobs import has_own_figures
from gpusage.reports.breakdown import Dimension
from gpusage.reports.lines import NO_NAME, Section, amount, by_section, part
from gpusage.reports.report import Report
from gpusage.store.rows import Observation
from gpusage_hooks.managers import Manager
from gpusage_hooks.types import Cluster, PastJob, Usage
from gpusage_hooks.units import DAY_S, HOUR_S

UNMEASURED = (
    "No job has GPU memory and utilization, so nobody can say which could have shared. gpusage in mode observe sees "
    "both, and changes no job."
)
NO_JOB = "No job that ended on GPUs."


def runs_of(jobs: Iterable[PastJob], cluster: Cluster) -> list[Observation]:
    """Return *jobs*, which ran on *cluster*, as runs that no node sampled.

    The GPUs of a job are those of its row, else of its node, else of its partition, where these have one type.
    """
    types: dict[str, set[str]] = defaultdict(set)
    for pool in cluster.pools:
        names = [f"type={name.casefold()}" for name in (pool.site_type, pool.requestable_type)]
        places = [f"node={name}" for name in pool.node_names] + [f"partition={name}" for name in pool.partitions]
        for key in ("any", *names, *places):
            types[key].add(pool.gpu or pool.site_type)

    runs = []
    for job in jobs:
        named = types[f"type={job.gpu_type.casefold()}" if job.gpu_type else "any"]
        options = (named, named & types[f"node={job.node}"], named & types[f"partition={job.partition}"])
        gpu = next((name for option in options if len(option) == 1 for name in option), job.gpu_type or "")
        started_at_s = job.submitted_at_s if job.started_at_s is None else job.started_at_s
        usage = Usage(
            number="",
            manager=cluster.manager,
            job_id=job.job_id,
            user=job.user,
            partition=job.partition,
            gpu=gpu,
            gpu_count=job.gpu_count,
            outcome=job.outcome,
            started_at_s=started_at_s,
            ended_at_s=started_at_s + job.duration_s,
            memory_bytes=job.memory_bytes,
            peak_utilization=job.peak_utilization,
        )
        runs += [] if job.left_out else [Observation(usage=usage, decision=None)]
    return runs


def file_notes(report: Report, runs: Sequence[Observation], cluster: Cluster, manager: Manager | None) -> Iterator[str]:
    """Yield what the *report* of *runs* on *cluster* rests on: capacity, measured jobs, and what is assumed."""
    of_one = [each.usage for each in runs if each.usage.gpu_count == 1]
    measured = [usage for usage in of_one if has_own_figures(usage)]
    untouched_s = [usage.ended_at_s - usage.started_at_s for usage in measured if not usage.memory_bytes]

    # From the first end of a job to the last: each job counts with all its hours.
    days, counts = (report.until_s - report.since_s) / DAY_S, Counter[str]()
    for pool in cluster.pools:
        counts[pool.gpu or pool.site_type] += pool.gpu_count
    for group in report.groups["gpu"]:
        capacity = counts[group.name] * days * DAY_S / HOUR_S
        of_all = f", {part(group.hours.booked, capacity)} of what {counts[group.name]} GPUs have" if capacity else ""
        yield f"{group.name or NO_NAME['gpu']}: {amount(group.hours.booked)} GPU hours in {days:.1f} days{of_all}."

    if measured:
        hours = amount(sum(untouched_s) / HOUR_S)
        untouched = f", of which {len(untouched_s):,} took no GPU memory at all, in {hours} GPU hours"
        seen = f"Of {len(of_one):,} jobs on one GPU the accounting has memory and utilization of {len(measured):,}"
        yield f"{seen}{untouched if untouched_s else ''}: the highest of each, so that used hours are not known."
    else:
        yield UNMEASURED if runs else NO_JOB
        if manager and manager.sampling:
            yield f"{manager.title}'s accounting has them with {manager.sampling}."
    bare = (pool for pool in cluster.pools if not pool.mps_per_gpu and pool.gpu and ":" not in pool.gpu)
    unshared = ", ".join(pool.site_type for pool in bare)
    if unshared:
        yield f"Today no job can have a part of {unshared}; here they count as if they were shared."
    yield from cluster.notes


def past_sections(
    report: Report, notes: Iterable[str], left_out: Mapping[str, int], by: Sequence[Dimension]
) -> Iterator[Section]:
    """Yield the parts of the *report* of a file: *notes*, hours *by* GPU type and more, and what was *left_out*."""
    yield Section(title="What the file has", notes=tuple(notes))
    dimensions = dict.fromkeys(("gpu", *by)) if report.run_count else ()
    yield from (by_section(dimension, report, is_first=dimension == "gpu") for dimension in dimensions)
    if left_out:
        rows = [(why, f"{count:,}") for why, count in left_out.items()]
        yield Section(title="Rows that are not counted", columns=("why", "rows"), rows=rows)


def left_out_counts(jobs: Iterable[PastJob]) -> Mapping[str, int]:
    """Return how many rows are no jobs that ended on GPUs, by the reason, the most frequent first."""
    return dict(Counter(job.left_out for job in jobs if job.left_out).most_common())
