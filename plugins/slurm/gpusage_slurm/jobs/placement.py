"""Where a pending share may run: the GPU types that bind it, the nodes that its user excludes, and those it avoids.

A share is bound to GPU types that had room when it was decided, and avoids nodes because of the jobs there. Where that
room or those nodes are gone, it would pend while other GPUs are free; being kept apart is worth no wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from gpusage.store.annotation import JobAnnotation, parse_annotation
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import AnnotatedJob
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.hostlist import expand_hostlist
from gpusage_slurm.cluster.nodes import NodeState, free_units, free_whole_gpus
from gpusage_slurm.jobs.queue import Row, base_id, requested_tres
from gpusage_slurm.submission.placement import (
    avoided_nodes_in,
    constraint_without_types,
    feature_groups,
    placement_in,
    request_without_avoided_nodes,
)
from gpusage_slurm.tres import parse_tres

WAITS_FOR_NODES = (
    "Priority",
    "Resources",
    "None",
    "ReqNodeNotAvail",
    "Nodes_required",
    "Nodes required",
    "BadConstraints",
)
"""How the reasons begin for which such a job waits; for `BadConstraints` slurmctld holds it, and nobody releases it."""

_CONSTRAINT = "constraint "
_SLICE = re.compile(r"gres/gpu:([A-Za-z0-9_.-]+):1")
_UNTYPED = re.compile(r"gres/gpu(?::1)?")
_AMOUNT = re.compile(r"(?P<number>[0-9.]+)(?P<unit>[KMGTP]?)")
_UNITS = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}  # MiB

NULL = "(null)"
_WIDTH = 65536


def is_bound(mark: JobAnnotation | None) -> bool:
    """Return whether gpusage bound the job of *mark* to GPU types, not its user, who named one or forbids others."""
    if mark is None or mark.keeps_off or not _UNTYPED.fullmatch(mark.before):
        return False
    return placement_in(mark).startswith(_CONSTRAINT) or mig_type_of(mark) is not None


def mig_type_of(mark: JobAnnotation) -> str | None:
    """Return the type of the slice (MIG) that a job with *mark* has in place of its user's GPU, as ``3g.20gb``."""
    typed = _SLICE.fullmatch(mark.after) if _UNTYPED.fullmatch(mark.before) else None
    return typed[1] if typed else None


def user_constraint(mark: JobAnnotation, features: str) -> str | None:
    """Return the user's own constraint, ``""`` for none, of a job that is bound; ``None`` where that is not so.

    Args:
        mark: The job's; a long one is cut off.
        features: Its constraint now; its user may have changed it since.
    """
    if not is_bound(mark):
        return None
    if mig_type_of(mark):
        return "" if features == "(null)" else features
    held = placement_in(mark).removeprefix(_CONSTRAINT)
    same = features.startswith(held[:-3]) if held.endswith("...") else features == held
    return constraint_without_types(features) if same else None


def could_run_on_whole_gpu(node: NodeState, job: scontrol.Line, own: str, mark: JobAnnotation | None = None) -> bool:
    """Return whether *node* has a whole GPU free, and cores and memory for the job; where in doubt, it has not.

    Args:
        node: Any.
        job: What `scontrol show job` says of it.
        own: Its user's constraint.
        mark: Its own, by which nodes that it avoids for its neighbours' sake are known.
    """
    cpu_count = int(job.get("NumCPUs", "1").partition("-")[0])
    of_cpu = parse_mib(job.get("MinMemoryCPU", "0")) * cpu_count
    groups = feature_groups(own) if own else ((),)
    return (
        node.open
        and free_whole_gpus(node) > 0
        and bool({*job.get("Partition", "").split(",")} & {*node.partitions})
        and node.cpu_count - node.used_cpu_count >= cpu_count
        and node.memory_mib - node.used_memory_mib >= max(parse_mib(job.get("MinMemoryNode", "0")), of_cpu)
        and any({*group} <= {*node.features} for group in groups)
        and may_run_on(job, mark, node.name)
    )


def parse_mib(text: str) -> float:
    """Return the MiB of ``64G``; 0 for what is no amount."""
    match = _AMOUNT.fullmatch(text)
    return float(match["number"]) * _UNITS[match["unit"]] if match else 0.0


def excluded_nodes(job: scontrol.Line) -> tuple[str, ...]:
    """Return the names of the nodes that *job* excludes; slurmctld writes ``n[1,3]``.

    What cannot be taken apart is one name.
    """
    listed = job.get("ExcNodeList", NULL)
    try:
        return () if listed == NULL else expand_hostlist(listed)
    except RequestError:
        return (listed,)


def read_excluded_nodes(job_id: str) -> str:
    """Return the list of the nodes that a job excludes, empty where there are none; an array's tasks exclude the same.

    It is read from a column of its own: of `scontrol show job`, a user's comment could pass for it. `squeue` has no
    long name for it before 24.11.

    Raises:
        RequestError: slurmctld does not answer, or the list is too long to be read whole.
    """
    listed = scontrol.run("squeue", "--noheader", "--all", "--states=all", f"--jobs={job_id}", f"--format=%{_WIDTH}x")
    text = next(iter(listed.splitlines()), "").strip()
    if len(text) >= _WIDTH:
        message = (
            f"Job {job_id} must exclude nodes in fewer than {_WIDTH} characters; it has more. It is left as it is."
        )
        raise RequestError(message)
    return "" if text == NULL else text


def user_excluded_nodes(mark: JobAnnotation | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of the nodes *names*, that a job with *mark* excludes, its user does.

    A list without some that the mark says was changed since: it is its user's.
    """
    ours = {*avoided_nodes_in(mark)}
    return tuple(name for name in names if name not in ours) if ours <= {*names} else names


def may_run_on(job: scontrol.Line, mark: JobAnnotation | None, node: str) -> bool:
    """Return whether neither the user of *job* names or excludes nodes, nor its share is kept off *node*.

    Args:
        job: What `scontrol show job` says of it.
        mark: Its own.
        node: Any.
    """
    if job.get("ReqNodeList", NULL) != NULL or node in avoided_nodes_in(mark):
        return False
    return job.get("ExcNodeList", NULL) == NULL or not user_excluded_nodes(mark, excluded_nodes(job))


def avoided_while_pending(row: Row) -> tuple[str, ...]:
    """Return the nodes that the job in *row* avoids while it waits for others; none if it waits for something else."""
    return avoided_nodes_in(parse_annotation(row["admin_comment"])) if row["Reason"].startswith(WAITS_FOR_NODES) else ()


def avoided_node_reason(row: Row, avoided: Iterable[NodeState]) -> str:
    """Return which of the nodes that the job in *row* avoids has room for it, one clause; empty where none has."""
    roomy = next((node.name for node in avoided if _has_room(node, row)), None)
    return f"node {roomy}, which it avoids for the jobs there, has room ({row['Reason']})" if roomy else ""


def readmission_settings(job: AnnotatedJob, mark: JobAnnotation) -> tuple[str, ...]:
    """Return the setting that lets *job* run where *mark* says that it must not; none where it may.

    What its user excludes stays, and so does a list that was changed since.
    """
    if not avoided_nodes_in(mark):
        return ()
    names = excluded_nodes({"ExcNodeList": read_excluded_nodes(base_id(job.job_id)) or NULL})
    return (f"ExcNodeList={','.join(user_excluded_nodes(mark, names))}",)


def readmitted_mark(mark: JobAnnotation, reason: str) -> JobAnnotation:
    """Return *mark* as it is once its job may run on the nodes that it avoided."""
    nodes = ", ".join(avoided_nodes_in(mark))
    return replace(
        mark,
        after=request_without_avoided_nodes(mark),
        reasons=f"it may run on {nodes} again: {reason}; {mark.reasons}",
    )


def _has_room(node: NodeState, row: Row) -> bool:
    """Return whether the share of the job in *row* could start on *node* now."""
    mark = parse_annotation(row["admin_comment"])
    resources = requested_tres(row)
    units = next((resource.count or 0 for resource in parse_tres(mark.after.partition(", ")[0] if mark else "")), 0)
    return (
        int(resources.get("cpu", "1")) <= node.cpu_count - node.used_cpu_count
        and parse_mib(resources.get("mem", "0")) <= node.memory_mib - node.used_memory_mib
        and node.open
        and free_units(node) >= units
    )
