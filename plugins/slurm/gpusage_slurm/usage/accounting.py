"""Every job with a GPU as slurmdbd has it, marked or not: who held how many GPUs for how long.

A requeued job has one row for each of its runs. A share counts as its part of a GPU, by the units of GPUs now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from gpusage.boundary.printable_text import one_line
from gpusage.store.annotation import JobAnnotation, parse_annotation
from gpusage_hooks.managers import GpuCatalogue, known_gpu
from gpusage_hooks.types import Allocation, Usage
from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.pools import read_cluster
from gpusage_slurm.jobs.queue import Row, sacct_rows
from gpusage_slurm.settings import MANAGER
from gpusage_slurm.tres import Tres, is_gpu, is_share, parse_tres
from gpusage_slurm.usage.collection import outcome_of_words

DEADLINE_S = 300.0
"""slurmdbd may take minutes over a month of a large cluster, and nobody's job waits for it."""
FIELDS = (
    *("JobID", "User", "UID", "Account", "Partition", "State", "ExitCode", "Start", "End", "JobName"),
    *("AllocTRES", "AdminComment"),
)
MPS = "mps"


def read_accounting(since_s: float, until_s: float, catalogue: GpuCatalogue) -> tuple[Usage, ...]:
    """Return the runs of jobs with GPUs that ended from *since_s* to *until_s*; see the hook.

    Raises:
        RequestError: There is no slurmdbd, or it does not answer.
    """
    scontrol.require_slurmdbd()
    times = (f"--starttime={scontrol.local_time(since_s)}", f"--endtime={scontrol.local_time(until_s)}")
    listed = sacct_rows("--allusers", "--duplicates", *times, fields=FIELDS, deadline_s=DEADLINE_S)
    rows = [dict(zip(FIELDS, cells, strict=True)) for cells in listed]
    held = [(row, resources) for row in rows if (resources := _resources(row))]
    units = _units(catalogue) if any(is_share(each) for _, resources in held for each in resources) else {}
    return tuple(usage for usage in _usages(held, units, catalogue) if since_s <= usage.ended_at_s <= until_s)


def _resources(row: Row) -> tuple[Tres, ...]:
    """Return the GPUs or the shares of a job; slurmdbd knows shares only where AccountingStorageTRES names them."""
    mark = parse_annotation(row["AdminComment"])
    held = tuple(each for each in parse_tres(row["AllocTRES"]) if is_gpu(each) or is_share(each))
    return held or _shares_of(mark)


def _shares_of(mark: JobAnnotation | None) -> tuple[Tres, ...]:
    return tuple(each for each in parse_tres(mark.after) if is_share(each)) if mark and mark.of_share else ()


def _usages(
    held: Sequence[tuple[Row, Sequence[Tres]]], units: Mapping[str, int], catalogue: GpuCatalogue
) -> Iterator[Usage]:
    for row, resources in held:
        started_at_s, ended_at_s = _seconds(row["Start"]), _seconds(row["End"])
        if started_at_s is None or ended_at_s is None:
            continue  # it never ran, or goes on
        mark = parse_annotation(row["AdminComment"])
        gpus = [each for each in resources if is_gpu(each)]
        # Where a type is accounted for, ``gres/gpu:a100=2`` stands beside ``gres/gpu=2``, which is the sum.
        typed = [each for each in resources if each.kind is not None]
        counted = [each for each in typed if is_gpu(each)] or gpus
        yield Usage(
            number=mark.number if mark else "",
            manager=MANAGER,
            job_id=row["JobID"],
            user=row["User"],
            user_id=row["UID"],
            account=row["Account"],
            partition=row["Partition"],
            job_name=one_line(row["JobName"]),
            gpu=_gpu(typed[0].kind or "", catalogue) if typed else "",
            gpu_count=sum(each.count or 0 for each in counted) or 1,
            granted=Allocation() if gpus else _share(resources, units),
            outcome=outcome_of_words(row["State"], row["ExitCode"]),
            started_at_s=started_at_s,
            ended_at_s=ended_at_s,
        )


def _share(resources: Sequence[Tres], units: Mapping[str, int]) -> Allocation:
    """Return the part of a GPU that *resources* are: all of it where they are shards, whose number nobody knows."""
    mps = [each for each in resources if each.name == MPS]
    if not mps:
        return Allocation()
    of_type = [each for each in mps if each.kind is not None] or mps
    count = sum(each.count or 0 for each in of_type)
    whole = units.get(of_type[0].kind or "", max(units.values(), default=WHOLE_PERCENT))
    percent = min(max(round(WHOLE_PERCENT * count / whole), 1), WHOLE_PERCENT)
    return Allocation(division="percentage", share_percent=percent)


def _units(catalogue: GpuCatalogue) -> Mapping[str, int]:
    """Return how many units a GPU of each type has."""
    pools = read_cluster(scontrol.partitions(), catalogue).pools
    return {pool.site_type: pool.mps_per_gpu for pool in pools if pool.mps_per_gpu}


def _gpu(kind: str, catalogue: GpuCatalogue) -> str:
    return known_gpu(catalogue, kind) or kind


def _seconds(text: str) -> float | None:
    """Return seconds since 1970 of a time of this host; ``None`` for ``Unknown``."""
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        return None
