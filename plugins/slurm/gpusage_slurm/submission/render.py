"""Decision -> what to set in a Slurm job.

Invariants:

1. Keys are ``set.X``, a field of job_submit's job description, or ``env.X``, a variable of the job. Nothing else.
2. What the job asks for beside GPUs stays as it was: other resources, its own `--prefer`, its constraint; only the GPU
   types on which its share holds, or the one that it named, are added to the constraint, for a share names none.
3. A decision that cannot be put into this site's words changes nothing: no fields, and ``after`` equals ``before``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gpusage_hooks.types import Cluster, Code, Decision, GpuPool, GpuRequest, Job, RenderedDecision
from gpusage_hooks.units import MIB
from gpusage_slurm.settings import MANAGER
from gpusage_slurm.submission.placement import (
    constraint_with_feature,
    constraint_with_types,
    exact_feature,
    format_avoided_nodes,
    preference_expression,
)
from gpusage_slurm.submission.request import TRES_FIELDS
from gpusage_slurm.tres import is_gpu, parse_tres, without_gpus

_NAMELESS = "a share cannot name its GPU type"
_NO_ROOM = "its own constraint, preference, nodes or other resources leave no room for a preferred GPU generation"

DECISION_VARIABLE = "GPUSAGE_DECISION"
"""The variable by which the node side and an inner srun know a job whose GPU became a share."""

THREADS_VARIABLE = "GPUSAGE_THREAD_PERCENT"
"""The variable by which the task prolog knows that the job may use more threads than its share."""

RESCUE_VARIABLE = "GPUSAGE_RESCUE"
"""The variable by which the task epilog knows a job that must not run again: ``no``."""

NOTICE_VARIABLE = "GPUSAGE_NOTICE"
"""The variable by which the task prolog knows a job whose output it must not write into: ``no``."""

_WHOLE = 100  # percent


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What to set, and the request as it then is, for people; or why nothing can be set."""

    fields: Mapping[str, str] = field(default_factory=dict)
    after: str = ""
    trouble: str | None = None


def render_decision(
    job: Job, decision: Decision, cluster: Cluster, *, with_notice: bool = True
) -> RenderedDecision | None:
    """Express *decision* in Slurm's terms: ``gres`` in the site's own MPS units, ``prefer``, and variables.

    The job's output says that it has a share unless *with_notice* is false.
    """
    if job.submission.manager != MANAGER:
        return None
    before = job.request_text
    reachable = cluster.within(job.request.partitions, job.request.scopes, job.request.node_features)
    change = _change(job.submission.fields, decision.request, reachable)
    if decision.code is not Code.REWRITE or not change.fields:
        return RenderedDecision(before=before, after=before, fields=MappingProxyType({}), trouble=change.trouble)
    after = change.after if change.after.startswith("gres/") else f"{before}, {change.after}"
    more = _priority_variable(job) if f"env.{DECISION_VARIABLE}" in change.fields else {}
    if more and not with_notice:
        more[f"env.{NOTICE_VARIABLE}"] = "no"
    return RenderedDecision(before=before, after=after, fields=MappingProxyType({**change.fields, **more}))


def mps_units(percent: int, pools: tuple[GpuPool, ...], gpu_types: tuple[str, ...]) -> int | None:
    """Return the site's own MPS units of *percent* of a GPU: on no pool that may run the job is it less.

    The job may run on *gpu_types*; on any type where none is named.

    ``None`` where a pool that may run the job could not give so many: slurmctld refuses a job that no node can run, and
    what else (memory, a constraint, a node's name) ties the job to that very pool is not for us to know.
    ``None``, too, where less than a GPU would be all of its units.
    """
    landing = [pool for pool in pools if pool.gpu_count > 0 and (not gpu_types or pool.site_type in gpu_types)]
    counts = [pool.mps_per_gpu or 0 for pool in landing]
    units = max(math.ceil(percent * max(counts, default=0) / 100), 1)
    # Where a GPU counts few units, a part of it rounds up to the whole: nothing would be left for others.
    return units if counts and units < min(counts) + (percent >= _WHOLE) else None


def _change(fields: Mapping[str, str], request: GpuRequest, cluster: Cluster) -> _Change:
    if request.slice_type is not None:
        return _mig_slice(fields, request.slice_type)
    if request.mps_thread_percent is None:
        types = request.required_gpus
        return _types_constraint(fields, types, cluster) if types else _preference(fields, request, cluster)
    named = (request.gpu_type,) if request.gpu_type else request.required_gpus
    units = mps_units(request.mps_thread_percent, cluster.pools, named)
    if units is None:
        return _Change()
    placement = _placement(fields, request, cluster)
    if placement.trouble and named:
        return placement
    share = f"mps:{units}"
    exclusion = _node_exclusion(fields, request)
    after = ", ".join(filter(None, (f"gres/{share}", exclusion.after, placement.after)))
    variables = {f"env.{DECISION_VARIABLE}": share, **_limit_variables(request)}
    return _Change(
        fields={**_gpu_replacement(fields, share), **variables, **placement.fields, **exclusion.fields}, after=after
    )


def _mig_slice(fields: Mapping[str, str], slice_type: str) -> _Change:
    """Return the change that asks for a slice (MIG) by its type; unlike a share it can name one."""
    named = f"gpu:{slice_type}:1"
    return _Change(fields=_gpu_replacement(fields, named), after=f"gres/{named}")


def _placement(fields: Mapping[str, str], request: GpuRequest, cluster: Cluster) -> _Change:
    """Return the change that says where a share is to run."""
    if request.gpu_type is not None:
        return _type_constraint(fields, request.gpu_type, cluster)
    if request.required_gpus:
        return _types_constraint(fields, request.required_gpus, cluster)
    return _preference(fields, request, cluster)


def _preference(fields: Mapping[str, str], request: GpuRequest, cluster: Cluster) -> _Change:
    """Return the change that makes the job prefer the GPUs of *request*, an empty one where it cannot."""
    expression = preference_expression(request, cluster.pools, fields.get("features", ""))
    if not expression or request.gpu_type is not None or not _may_prefer(fields):
        return _Change(trouble=_NO_ROOM)
    return _Change(fields={"set.prefer": expression}, after=f"prefer {expression}")


def _type_constraint(fields: Mapping[str, str], gpu_type: str, cluster: Cluster) -> _Change:
    """Return the change that holds the job to *gpu_type* by its feature, for a share cannot name it."""
    constraint = fields.get("features", "")
    exact = exact_feature(gpu_type, cluster.pools)
    if exact is None:
        return _Change(trouble=f"{_NAMELESS}, and no feature is on all of its nodes and on no others")
    if fields.get("prefer"):
        return _Change(trouble=f"{_NAMELESS}, and the job's --prefer would stand in place of its feature {exact}")
    held = constraint_with_feature(exact, constraint)
    if held is None:
        return _Change(trouble=f"{_NAMELESS}, and its feature {exact} cannot be joined to --constraint={constraint}")
    return _Change(fields={"set.features": held} if held != constraint else {}, after=f"constraint {held}")


def _types_constraint(fields: Mapping[str, str], gpu_types: tuple[str, ...], cluster: Cluster) -> _Change:
    """Return the change that lets the job run on *gpu_types* alone: on them the price of its share holds."""
    constraint = fields.get("features", "")
    held = None if fields.get("prefer") else constraint_with_types(gpu_types, cluster.pools, constraint)
    if held is None:
        return _Change(trouble=f"it is decided for {', '.join(gpu_types)} only, to which this job cannot be bound")
    return _Change(fields={"set.features": held}, after=f"constraint {held}")


def _node_exclusion(fields: Mapping[str, str], request: GpuRequest) -> _Change:
    """Return the change that keeps a share off nodes, beside those that its user excludes; an empty one for none."""
    own = fields.get("exc_nodes", "")
    added = request.avoided_nodes[len(own.split(",")) if own else 0 :]
    if not added:
        return _Change()
    return _Change(fields={"set.exc_nodes": ",".join(request.avoided_nodes)}, after=format_avoided_nodes(added))


def _gpu_replacement(fields: Mapping[str, str], part: str) -> dict[str, str]:
    """Return the fields that put *part*, of one GPU, in place of the GPUs in all four places."""
    # `gres` puts the prefix before every word: one that had none, and so meant nothing, would come to life.
    others = [item.text for item in parse_tres(fields.get("tres_per_node", "")) if item.generic and not is_gpu(item)]
    changes = {"set.gres": ",".join((part, *others))}
    for placement in TRES_FIELDS[1:]:
        left = without_gpus(fields.get(placement, ""))
        if left != fields.get(placement, ""):
            changes[f"set.{placement}"] = left
    if fields.get("tres_bind"):
        changes["set.tres_bind"] = ""
    return changes


def _limit_variables(request: GpuRequest) -> dict[str, str]:
    """Return the variables that say what the processes on a share may take, and whether they may run again."""
    variables = {}
    if request.memory_cap_bytes is not None:
        # Device 0, for the job sees only the device that it shares.
        variables["env.CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={math.ceil(request.memory_cap_bytes / MIB)}M"
    if request.thread_cap_percent is not None:
        variables[f"env.{THREADS_VARIABLE}"] = str(request.thread_cap_percent)
    if not request.repeatable:
        variables[f"env.{RESCUE_VARIABLE}"] = "no"
    return variables


def _priority_variable(job: Job) -> dict[str, str]:
    """Return the variable that lets the kernels of a job with a latency limit go before those of the jobs beside it."""
    is_urgent = job.model_request is not None and job.model_request.workload.slo is not None
    return {"env.CUDA_MPS_CLIENT_PRIORITY": "0" if is_urgent else "1"}  # MPS's own: normal, and below normal


def _may_prefer(fields: Mapping[str, str]) -> bool:
    """Return whether a preference can do no harm: slurmctld treats one that no node could ever meet as a demand.

    Without `ignore_prefer_validation` it refuses such a job, and with it a job that asks for other resources may wait
    for good; `gpusage_slurm.cluster.observation` leaves features only where the site has set that.
    """
    named = any(fields.get(name) for name in ("prefer", "req_nodes", "exc_nodes"))
    resources = [item for placement in TRES_FIELDS for item in parse_tres(fields.get(placement, ""))]
    return not named and all(is_gpu(item) for item in resources if item.generic)
