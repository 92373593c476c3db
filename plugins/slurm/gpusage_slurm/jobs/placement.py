"""Where a pending share may run: the GPU types that bind it, the nodes that its user excludes or gpusage avoids.

A share is bound to GPU types that had room when it was decided, and avoids nodes because of the jobs there. Where that
room or those nodes are gone, it would pend while other GPUs are free; being kept apart is worth no wait.

A mark has all of this behind the share, as `gpusage_slurm.submission.render` and node/turn_back.sh write it:
``gres/mps:40, apart n1,n2, start 3, constraint v100``. A share keeps *apart* from other users' jobs, and *avoids* nodes
for any other reason; of its starts, two were beside another user's and turned back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpusage.store.annotation import JobAnnotation, parse_annotation
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import AnnotatedJob
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.hostlist import expand_hostlist
from gpusage_slurm.cluster.nodes import NodeState, counts, free_gpus, free_units, free_whole_gpus
from gpusage_slurm.jobs.queue import Row, base_id, requested_tres
from gpusage_slurm.submission.render import OR
from gpusage_slurm.submission.request import feature_groups
from gpusage_slurm.tres import parse_mib, parse_tres

WAITS_FOR_NODES = (
    *("Priority", "Resources", "None"),
    *("ReqNodeNotAvail", "Nodes_required", "Nodes required", "BadConstraints"),
)
"""How the reasons begin for which such a job waits; for `BadConstraints` slurmctld holds it, and nobody releases it."""

_AFTER_SHARE = re.compile(
    r"(?:(?P<how>avoid|apart) (?P<nodes>[^, ]+(?:,[^, ]+)*)(?:, |$))?(?:(?P<start>start \d+)(?:, |$))?(?P<placement>.*)"
)
_CONSTRAINT = "constraint "
# ``(v100|a100)&(ib|opa)`` or ``v100&ib``: the types come first, as `render.py` joins them.
_BOUND = re.compile(r"(?:\([^()]*\)|[^&()]+)(?:&(?P<own>.+))?")
_SLICE = re.compile(r"gres/gpu:([A-Za-z0-9_.-]+):1")
_PROFILE = re.compile(r"\dg\.\d+gb")
_UNTYPED = re.compile(r"gres/gpu(?::1)?")

NULL = "(null)"
# The widest column that `squeue --format` is asked for; a list that fills it may be cut.
_WIDTH = 65536


def avoided_nodes_in(mark: JobAnnotation | None) -> tuple[str, ...]:
    """Return the nodes that a job with *mark* avoids because of the jobs there."""
    nodes = _after_share(mark)["nodes"] if mark else None
    return tuple(nodes.split(",")) if nodes else ()


def start_in(mark: JobAnnotation) -> str:
    """Return the count of its starts that *mark* records, ``start 3``, where some were turned back; ``""`` for none."""
    return _after_share(mark)["start"] or ""


def placement_in(mark: JobAnnotation) -> str:
    """Return the constraint or preference that *mark* records after share and avoided nodes; ``""`` for none."""
    return _after_share(mark)["placement"] or ""


def other_types_in(mark: JobAnnotation | None) -> tuple[str, ...]:
    """Return the GPU types that would do as well for a job with *mark* as the one that it names for its user."""
    placed = placement_in(mark) if mark else ""
    return tuple(placed.removeprefix(OR).split("|")) if placed.startswith(OR) else ()


def _after_share(mark: JobAnnotation) -> Mapping[str, str | None]:
    match = _AFTER_SHARE.match(mark.after.partition(", ")[2])
    return match.groupdict() if match else {}


def is_bound(mark: JobAnnotation | None) -> bool:
    """Return whether gpusage bound the job of *mark* to GPU types, not its user, who named one or forbids others."""
    if mark is None or mark.keeps_off:
        return False
    is_held = _UNTYPED.fullmatch(mark.before) and placement_in(mark).startswith(_CONSTRAINT)
    return bool(is_held) or mig_type_of(mark) is not None


def mig_type_of(mark: JobAnnotation) -> str | None:
    """Return the type of the slice (MIG) that a job with *mark* has in place of its user's GPU, as ``3g.20gb``."""
    typed = _SLICE.fullmatch(mark.after.partition(", ")[0])
    if typed is None or mark.after == mark.before:
        return None
    # A whole GPU is named where its user named it, and where the job fits on no other.
    is_sure = _UNTYPED.fullmatch(mark.before) and not mark.keeps_off
    return typed[1] if is_sure or _PROFILE.search(typed[1]) else None


def user_constraint(mark: JobAnnotation, features: str) -> str | None:
    """Return the user's own constraint, ``""`` for none, of a job that is bound; ``None`` where that is not so.

    Args:
        mark: The job's; a long one is cut off.
        features: Its constraint now; its user may have changed it since.
    """
    if not is_bound(mark):
        return None
    if mig_type_of(mark):
        return "" if features == NULL else features

    # A mark at Slurm's limit ends in dots; what stands before them must agree.
    held = placement_in(mark).removeprefix(_CONSTRAINT)
    same = features.startswith(held[:-3]) if held.endswith("...") else features == held
    return constraint_without_types(features) if same else None


def constraint_without_types(held: str) -> str:
    """Return the job's own part of a constraint that binds it to GPU types."""
    bound = _BOUND.fullmatch(held)
    return (bound["own"] or "").removeprefix("(").removesuffix(")") if bound else held


def could_run_on_whole_gpu(
    node: NodeState, job: scontrol.Line, own: str, mark: JobAnnotation | None = None, gpu_type: str = ""
) -> bool:
    """Return whether *node* has a whole GPU free, and cores and memory for the job; where in doubt, it has not.

    Args:
        node: Any.
        job: Its fields by the names of `scontrol show job`.
        own: Its user's constraint.
        mark: Its own, by which nodes that it avoids for its neighbours' sake are known.
        gpu_type: Of the GPU; where empty, what its user named.
    """
    cpu_count = int(job.get("NumCPUs", "1").partition("-")[0])
    of_cpu = (parse_mib(job.get("MinMemoryCPU", "0")) or 0.0) * cpu_count
    groups = feature_groups(own) if own else ((),)
    named = _SLICE.fullmatch(mark.before) if mark else None
    gpu_type = gpu_type or (named[1] if named else "")
    free = free_gpus(node.gres, node.gres_used, gpu_type) if gpu_type else free_whole_gpus(node)
    return (
        node.open
        and free > 0
        and (not gpu_type or gpu_type in counts(node.gres, "gpu"))
        and bool({*job.get("Partition", "").split(",")} & {*node.partitions})
        and node.cpu_count - node.used_cpu_count >= cpu_count
        and node.memory_mib - node.used_memory_mib >= max(parse_mib(job.get("MinMemoryNode", "0")) or 0.0, of_cpu)
        and any({*group} <= {*node.features} for group in groups)
        and may_run_on(job, mark, node.name)
    )


def user_excluded_nodes(mark: JobAnnotation | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of the nodes *names*, that a job with *mark* excludes, its user does.

    A list that lacks some of the mark's was changed since: it is its user's.
    """
    ours = {*avoided_nodes_in(mark)}
    return tuple(name for name in names if name not in ours) if ours <= {*names} else names


def may_run_on(job: scontrol.Line, mark: JobAnnotation | None, node: str) -> bool:
    """Return whether neither the user of *job* names or excludes nodes, nor its share is kept off *node*.

    Args:
        job: Its fields by the names of `scontrol show job`.
        mark: Its own.
        node: Any.
    """
    if job.get("ReqNodeList", NULL) != NULL or node in avoided_nodes_in(mark):
        return False
    excluded = job.get("ExcNodeList", NULL)
    return excluded == NULL or not user_excluded_nodes(mark, _names_of(excluded))


def avoided_while_pending(row: Row) -> tuple[str, ...]:
    """Return the nodes that the job in *row* avoids while it waits for others; none if it waits for something else."""
    return avoided_nodes_in(parse_annotation(row["admin_comment"])) if row["Reason"].startswith(WAITS_FOR_NODES) else ()


def avoided_node_reason(row: Row, avoided: Iterable[NodeState], users: Mapping[str, set[str]]) -> tuple[str, bool]:
    """Return which of its *avoided* nodes has room for the job in *row*, as a clause; empty where none has.

    Args:
        row: By the columns of `squeue`.
        avoided: Nodes.
        users: Of the jobs on shares, by node: beside another user's the job would be sent back to the queue.

    Returns:
        The clause, and whether the room is a whole GPU beside other users' jobs.
    """
    mark, resources = parse_annotation(row["admin_comment"]), requested_tres(row)
    share = parse_tres(mark.after.partition(", ")[0] if mark else "")
    units = next((resource.count or 0 for resource in share), 0)
    cpu_count, mib = int(resources.get("cpu", "1")), parse_mib(resources.get("mem", "0")) or 0.0

    for node in avoided:
        has_host = cpu_count <= node.cpu_count - node.used_cpu_count and mib <= node.memory_mib - node.used_memory_mib
        if not (has_host and node.open):
            continue
        # Jobs are listed before nodes: those of a node whose GPUs are all free have ended since.
        free_count, has_others = free_whole_gpus(node), users.get(node.name, set()) - {row["UserName"]}
        if mark and _after_share(mark)["how"] == "apart" and has_others and free_count < node.gpu_count:
            if free_count:
                return f"a whole GPU is free on {node.name}, beside other users' shares ({row['Reason']})", True
        elif free_units(node) >= units:
            return f"node {node.name}, which it avoids for the jobs there, has room ({row['Reason']})", False
    return "", False


def readmission_settings(job: AnnotatedJob, mark: JobAnnotation) -> tuple[str, ...]:
    """Return the setting that lets *job* run where *mark* says that it must not; none where it may.

    What its user excludes stays, and so does a list that was changed since.

    Raises:
        RequestError: slurmctld does not answer, or the list is too long to be read whole.
    """
    if not avoided_nodes_in(mark):
        return ()

    # A column of its own: in `scontrol show job` a user's comment could pass for it. `squeue` has no long name for it
    # before 24.11. An array's tasks exclude the same nodes.
    which = f"--jobs={base_id(job.job_id)}"
    listed = scontrol.run("squeue", "--noheader", "--all", "--states=all", which, f"--format=%{_WIDTH}x")
    text = next(iter(listed.splitlines()), "").strip()
    if len(text) >= _WIDTH:
        message = (
            f"Job {base_id(job.job_id)} must exclude nodes in fewer than {_WIDTH} characters; it has more. It is left "
            "as it is."
        )
        raise RequestError(message)
    names = () if text in ("", NULL) else _names_of(text)
    return (f"ExcNodeList={','.join(user_excluded_nodes(mark, names))}",)


def _names_of(listed: str) -> tuple[str, ...]:
    """Return the names of ``n[1,3]``, as slurmctld writes a list; a list that cannot be parsed counts as a name."""
    try:
        return expand_hostlist(listed)
    except RequestError:
        return (listed,)


def readmitted_mark(mark: JobAnnotation, reason: str) -> JobAnnotation:
    """Return *mark* as it is once its job may run on the nodes that it avoided."""
    nodes = ", ".join(avoided_nodes_in(mark))
    return replace(
        mark,
        after=", ".join(filter(None, (mark.after.partition(", ")[0], start_in(mark), placement_in(mark)))),
        reasons=f"it may run on {nodes} again: {reason}; {mark.reasons}",
    )
