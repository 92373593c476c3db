"""Every job with a GPU as slurmdbd has it, marked or not: who held how many GPUs for how long.

A requeued job has one row for each of its runs. A share or shards count as their part of a GPU, by its units now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpusage.boundary.printable_text import one_line
from gpusage.store.annotation import parse_annotation
from gpusage_hooks.managers import GpuCatalogue, known_gpu
from gpusage_hooks.types import Allocation, Usage
from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.pools import read_cluster
from gpusage_slurm.jobs.queue import Row, sacct_rows
from gpusage_slurm.settings import MANAGER
from gpusage_slurm.tres import Tres, is_gpu, is_share, parse_tres
from gpusage_slurm.usage.collection import outcome_of

DEADLINE_S = 300.0
"""slurmdbd may take minutes over a month of a large cluster, and nobody's job waits for it."""
FIELDS = (
    *("JobID", "User", "UID", "Account", "Partition", "State", "ExitCode", "Start", "End", "JobName"),
    *("AllocTRES", "AdminComment"),
)


def read_accounting(since_s: float, until_s: float, catalogue: GpuCatalogue) -> tuple[Usage, ...]:
    """Return the runs of jobs with GPUs that ended from *since_s* to *until_s*; see the hook.

    Raises:
        RequestError: There is no slurmdbd, or it does not answer.
    """
    scontrol.require_slurmdbd()
    times = (f"--starttime={scontrol.local_time(since_s)}", f"--endtime={scontrol.local_time(until_s)}")
    listed = sacct_rows("--allusers", "--duplicates", *times, fields=FIELDS, deadline_s=DEADLINE_S)

    held: list[tuple[Row, Sequence[Tres]]] = []
    for cells in listed:
        row = dict(zip(FIELDS, cells, strict=True))
        resources = [each for each in parse_tres(row["AllocTRES"]) if is_gpu(each) or is_share(each)]

        # slurmdbd knows shares only where AccountingStorageTRES names them; a mark names them in any case.
        mark = parse_annotation(row["AdminComment"])
        if not resources and mark and mark.of_share:
            resources = [each for each in parse_tres(mark.after) if is_share(each)]
        if resources:
            held.append((row, resources))

    # The units of a GPU are a question to slurmctld, of no use where all GPUs are whole.
    units: Mapping[tuple[str, str], int] = {}
    if any(is_share(each) for _, resources in held for each in resources):
        pools = read_cluster(scontrol.partitions(), catalogue).pools
        counted = [("mps", pool.site_type, pool.mps_per_gpu) for pool in pools]
        counted += [("shard", pool.site_type, pool.shards_per_gpu) for pool in pools]
        units = {(name, kind): count for name, kind, count in counted if count}
    runs = (_usage(row, resources, units, catalogue) for row, resources in held)
    return tuple(usage for usage in runs if usage is not None and since_s <= usage.ended_at_s <= until_s)


def _usage(
    row: Row, resources: Sequence[Tres], units: Mapping[tuple[str, str], int], catalogue: GpuCatalogue
) -> Usage | None:
    """Return the run in *row*, which held *resources*; ``None`` where it never began, or goes on."""
    started_at_s, ended_at_s = scontrol.seconds_of(row["Start"]), scontrol.seconds_of(row["End"])
    if started_at_s is None or ended_at_s is None:
        return None
    mark = parse_annotation(row["AdminComment"])
    gpus = [each for each in resources if is_gpu(each)]

    # Where a type is accounted for, ``gres/gpu:a100=2`` stands beside ``gres/gpu=2``, which is the sum of all types. Of
    # several, or of one that slurmdbd does not count, nobody knows which hours are whose.
    typed = [each for each in resources if each.kind is not None]
    counts = [sum(each.count or 0 for each in gpus if (each.kind is None) == is_sum) for is_sum in (False, True)]
    kind = (typed[0].kind or "") if len(typed) == 1 and (not gpus or counts[0] == max(counts)) else ""
    return Usage(
        number=mark.number if mark else "",
        manager=MANAGER,
        job_id=row["JobID"],
        user=row["User"],
        user_id=row["UID"],
        account=row["Account"],
        partition=row["Partition"],
        job_name=one_line(row["JobName"]),
        gpu=(known_gpu(catalogue, kind) or kind) if kind else "",
        gpu_count=max(counts) or 1,
        granted=Allocation() if gpus else _share(resources, units),
        outcome=outcome_of({**row, "exit_code": row["ExitCode"]}),
        started_at_s=started_at_s,
        ended_at_s=ended_at_s,
    )


def _share(resources: Sequence[Tres], units: Mapping[tuple[str, str], int]) -> Allocation:
    """Return the part of a GPU that *resources* are, by *units*: how many of a share and a type a GPU counts now.

    Nothing holds a job to its shards, but they book their part; all of a GPU where nobody knows how many it has.
    """
    counted = [each for each in resources if each.kind is not None] or [*resources]
    name, kind = counted[0].name, counted[0].kind or ""
    known = [count for (own, _), count in units.items() if own == name]
    whole = units.get((name, kind), max(known, default=WHOLE_PERCENT if name == "mps" else 1))

    # GPUs may have had other units when the job ran.
    percent = min(max(round(WHOLE_PERCENT * sum(each.count or 0 for each in counted) / whole), 1), WHOLE_PERCENT)
    return Allocation(division="percentage" if name == "mps" else "whole", share_percent=percent)
