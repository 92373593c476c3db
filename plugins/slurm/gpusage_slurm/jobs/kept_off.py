"""A waiting job that avoids nodes for its neighbours' sake: whether one of these has room for it, and how it is let in.

Such a job is let in where it would only wait for the others: being kept apart is worth no wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpusage.mark import Mark, parse_mark
from gpusage_hooks.types import MarkedJob
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.pools import NodeState, free_units
from gpusage_slurm.jobs.bound import WAITS_FOR_NODES, mib
from gpusage_slurm.jobs.exclusion import excluded, own_exclusion
from gpusage_slurm.jobs.rows import Row, asked, base_id
from gpusage_slurm.submission.avoided import avoided_by, without_avoided
from gpusage_slurm.tres import parse_list


def avoided_nodes(row: Row) -> tuple[str, ...]:
    """Return the nodes that the job in *row* avoids while it waits for others; none if it waits for something else."""
    return avoided_by(parse_mark(row["admin_comment"])) if row["Reason"].startswith(WAITS_FOR_NODES) else ()


def kept_waiting(row: Row, avoided: Iterable[NodeState]) -> str:
    """Return which of the nodes that the job in *row* avoids has room for it, one clause; empty where none has."""
    roomy = next((node.name for node in avoided if _has_room(node, row)), None)
    return f"node {roomy}, which it avoids for the jobs there, has room ({row['Reason']})" if roomy else ""


def freed_nodes(job: MarkedJob, mark: Mark) -> tuple[str, ...]:
    """Return the setting that lets *job* run where *mark* says that it must not; none where it may.

    What its user excludes stays, and so does a list that was changed since.
    """
    if not avoided_by(mark):
        return ()
    names = excluded(scontrol.job(base_id(job.job_id)))
    return (f"ExcNodeList={','.join(own_exclusion(mark, names))}",)


def let_in(mark: Mark, reason: str) -> Mark:
    """Return *mark* as it is once its job may run on the nodes that it avoided."""
    nodes = ", ".join(avoided_by(mark))
    return replace(mark, after=without_avoided(mark), reasons=f"it may run on {nodes} again: {reason}; {mark.reasons}")


def _has_room(node: NodeState, row: Row) -> bool:
    """Tell whether the share of the job in *row* could start on *node* now."""
    mark = parse_mark(row["admin_comment"])
    resources = asked(row)
    units = next((resource.count or 0 for resource in parse_list(mark.after.partition(", ")[0] if mark else "")), 0)
    return (
        int(resources.get("cpu", "1")) <= node.cpu_count - node.used_cpu_count
        and mib(resources.get("mem", "0")) <= node.memory_mib - node.used_memory_mib
        and node.open
        and free_units(node) >= units
    )
