"""Decision -> the fields and variables to set in a Slurm job.

A share cannot name a GPU type: `mps:v100:40` starts the job, and slurmctld then refuses every step of it (tried on
22.05 and 24.11). So a feature stands in. A user's constraint is joined with ours if it is plain: names joined all by
``&`` or all by ``|``. One with counts, brackets or both operators is not.

Invariants:

1. Keys are ``set.X``, a field of job_submit's job description, or ``env.X``, a variable of the job. Nothing else.
2. What the job asks for beside GPUs stays as it was: other resources, its own `--prefer`, its constraint; only the GPU
   types on which its share holds, or the one that it named, are added to the constraint, for a share names none.
3. A decision that cannot be put into this site's words changes nothing: no fields, and ``after`` equals ``before``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from gpusage_hooks.types import Cluster, Code, Decision, GpuPool, GpuRequest, Job, RenderedDecision
from gpusage_hooks.units import MIB, WHOLE_PERCENT
from gpusage_slurm.submission.confinement import (
    find_confinement,
    preferable_features,
    requestable_types,
    requested_pools,
)
from gpusage_slurm.submission.request import FEATURE, FIELD_BYTES, PLAIN_CONSTRAINT, TRES_FIELDS, describe_request
from gpusage_slurm.tres import is_gpu, parse_tres, without_gpus

_NAMELESS = "a share cannot name its GPU type"
_VAIN = "every node that it may use has the feature of the preferred GPU generation"
_UNBOUND = "it is decided for {} only, to which this job cannot be bound"
_NO_ROOM = "its own constraint, preference, nodes or other resources leave no room for a preferred GPU generation"

DECISION_VARIABLE = "GPUSAGE_DECISION"
"""The variable by which the node side and an inner srun know a job whose GPU became a share, or a slice."""

ELSE = "else "
"""In a mark, before the GPU type on which a job runs again that lacked memory on its slice."""

OR = "or "
"""In a mark, before the GPU types that would do as well as the one that is named."""

THREADS_VARIABLE = "GPUSAGE_THREAD_PERCENT"
"""The variable by which the task prolog knows that the job may use more threads than its share."""

RESCUE_VARIABLE = "GPUSAGE_RESCUE"
"""The variable by which the task epilog knows a job that must not run again: ``no``."""

NOTICE_VARIABLE = "GPUSAGE_NOTICE"
"""The variable by which the task prolog knows a job whose output it must not write into: ``no``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """Fields and variables to set, and the request as it then is, for people; or why nothing can be set."""

    fields: Mapping[str, str] = field(default_factory=dict)
    after: str = ""
    trouble: str | None = None


def render_decision(job: Job, decision: Decision, cluster: Cluster, *, with_notice: bool = True) -> RenderedDecision:
    """Express *decision* in Slurm's terms: ``gres`` in the site's own MPS units, ``prefer``, and variables.

    The job's output says that it has a share unless *with_notice* is false.
    """
    before, fields, request = job.request_text, job.submission.fields, decision.request
    reachable = cluster.within(job.request.partitions, job.request.scopes, job.request.node_features)
    if request.slice_type is not None:
        change = _slice(fields, request, request.slice_type, reachable)
    elif request.mps_thread_percent is None:
        change = _whole_gpu(fields, request, reachable)
    else:
        change = _share(fields, request, request.mps_thread_percent, reachable)
    if decision.code is not Code.REWRITE or not change.fields:
        return RenderedDecision(before=before, after=before, fields=MappingProxyType({}), trouble=change.trouble)

    more = {}
    if request.mps_thread_percent is not None and f"env.{DECISION_VARIABLE}" in change.fields:
        # MPS has two priorities, normal and below normal: kernels of a job with a latency limit go before the others'.
        is_urgent = job.model_request is not None and job.model_request.workload.slo is not None
        more["env.CUDA_MPS_CLIENT_PRIORITY"] = "0" if is_urgent else "1"
        if not with_notice:
            more[f"env.{NOTICE_VARIABLE}"] = "no"

    # A preference alone leaves the request as it was.
    after = change.after if change.after.startswith("gres/") else f"{before}, {change.after}"
    return RenderedDecision(before=before, after=after, fields=MappingProxyType({**change.fields, **more}))


def _slice(fields: Mapping[str, str], request: GpuRequest, slice_type: str, cluster: Cluster) -> _Change:
    """Return the change to a slice (MIG): a GPU with a type of its own; unlike a share it can name one."""
    types = requestable_types((slice_type,), cluster.pools)
    if not types:
        return _Change(trouble=_UNBOUND.format(slice_type))
    named = f"gpu:{types[0]}:1"

    # By the mark and the variable the task epilog knows what to do if its memory is too small.
    names = (pool.requestable_type for pool in cluster.pools if pool.site_type in request.preferred_gpus[:1])
    next_type = next(filter(None, names), "")
    larger = f", {ELSE}{next_type}" if next_type else ""
    variables = {f"env.{DECISION_VARIABLE}": named} if request.memory_cap_bytes is not None else {}
    if not request.repeatable:
        variables[f"env.{RESCUE_VARIABLE}"] = "no"
    return _Change(fields={**_gpu_replacement(fields, named), **variables}, after=f"gres/{named}{larger}")


def _whole_gpu(fields: Mapping[str, str], request: GpuRequest, cluster: Cluster) -> _Change:
    """Return the change that holds a whole GPU to the types that the job must have, and lets it prefer some."""
    if not request.required_gpus:
        return _preference(fields, request, cluster)
    own = fields.get("features", "")

    def can_hold(words: Sequence[str]) -> bool:
        return not fields.get("prefer") and _join_constraint("|".join(words), own) is not None

    confined = find_confinement(request.required_gpus, request, cluster, can_hold)
    if confined is None:
        return _Change(trouble=_UNBOUND.format(", ".join(request.required_gpus)))
    if confined.gpu_type and request.gpu_count > 1:
        return _typed(fields, confined.gpu_type)
    if confined.gpu_type:
        named = f"gpu:{confined.gpu_type}:1"
        more = f", {OR}{'|'.join(confined.other_types)}" if confined.other_types else ""
        return _Change(fields=_gpu_replacement(fields, named), after=f"gres/{named}{more}")

    if confined.features:
        held = _join_constraint("|".join(confined.features), own) or ""  # never empty: `can_hold` has tried it
        changes, after = {"set.features": held}, f"constraint {held}"
    else:
        excluded = ",".join(filter(None, (fields.get("exc_nodes", ""), confined.excluded)))
        changes, after = {"set.exc_nodes": excluded}, f"exclude {confined.excluded}"

    better = [name for name in request.preferred_gpus if name in request.required_gpus]
    features = preferable_features(better, request, cluster) if better and not _is_tied(fields) else ()
    is_vain = not features or {*features} == {*confined.features}
    first = None if is_vain else _join_constraint("|".join(features), own)
    if first:
        changes, after = {**changes, "set.prefer": first}, f"{after}, prefer {first}"
    return _Change(fields=changes, after=after)


def _typed(fields: Mapping[str, str], gpu_type: str) -> _Change:
    """Return the change that names *gpu_type* wherever the job asks for GPUs."""
    typed = {}
    for name in TRES_FIELDS:
        parts = parse_tres(fields.get(name, ""))
        words = [f"{each.text[:5]}gpu:{gpu_type}:{each.count}" if is_gpu(each) else each.text for each in parts]
        if any(map(is_gpu, parts)):
            typed[name] = ",".join(words)
    # job_submit calls the first of them `gres`, too, and this name can be set.
    changes = {f"set.{'gres' if name == TRES_FIELDS[0] else name}": text for name, text in typed.items()}
    return _Change(fields=changes, after=describe_request({**fields, **typed}))


def mps_units(percent: int, pools: tuple[GpuPool, ...], gpu_types: tuple[str, ...]) -> int | None:
    """Return the site's own MPS units of *percent* of a GPU: on no pool that may run the job is it less.

    The job may run on *gpu_types*; on any type where none is named.

    ``None`` where a pool that may run the job could not give so many: slurmctld refuses a job that no node can run, and
    what else (memory, a constraint, a node's name) ties the job to that very pool is not for us to know.
    ``None``, too, where less than a GPU would be all of its units.
    """
    landing = [pool for pool in pools if pool.gpu_count > 0 and (not gpu_types or pool.site_type in gpu_types)]
    counts = [pool.mps_per_gpu or 0 for pool in landing]
    units = max(math.ceil(percent * max(counts, default=0) / WHOLE_PERCENT), 1)

    # Where a GPU counts few units, a part of it rounds up to the whole: nothing would be left for others.
    return units if counts and units < min(counts) + (percent >= WHOLE_PERCENT) else None


def _share(fields: Mapping[str, str], request: GpuRequest, percent: int, cluster: Cluster) -> _Change:
    """Return the change that puts a share of *percent* in the place of the job's GPU."""
    # Units are counted for the GPUs on which the job may land.
    named = request.required_gpus
    if request.gpu_type and not named:
        named = tuple(pool.site_type for pool in requested_pools(request, cluster))
    units = mps_units(percent, cluster.pools, named)
    if units is None:
        return _Change()
    share = f"mps:{units}"

    # Where the share is to run. What it needs to hold must be expressed; what it prefers may be left out.
    trouble = _UNBOUND.format(", ".join(named)) if request.gpu_type is None else _NAMELESS
    placement = _share_placement(fields, named, trouble, cluster) if named else _preference(fields, request, cluster)
    if placement.trouble and named:
        return placement

    # Nodes to avoid come after those that the user excludes. A mark has them right behind the share, so that the
    # limit on its length cuts off other words first; `gpusage_slurm.jobs.placement` reads them there.
    own = fields.get("exc_nodes", "")
    avoided = request.avoided_nodes[len(own.split(",")) if own else 0 :]
    exclusion = {"set.exc_nodes": ",".join(request.avoided_nodes)} if avoided else {}
    how = "apart" if request.keeps_apart else "avoid"
    after = (f"gres/{share}", f"{how} {','.join(avoided)}" if avoided else "", placement.after)

    variables = {f"env.{DECISION_VARIABLE}": share}
    if request.memory_cap_bytes is not None:
        # Device 0, for the job sees only the device that it shares.
        variables["env.CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={math.ceil(request.memory_cap_bytes / MIB)}M"
    if request.thread_cap_percent is not None:
        variables[f"env.{THREADS_VARIABLE}"] = str(request.thread_cap_percent)
    if not request.repeatable:
        variables[f"env.{RESCUE_VARIABLE}"] = "no"
    return _Change(
        fields={**_gpu_replacement(fields, share), **variables, **placement.fields, **exclusion},
        after=", ".join(filter(None, after)),
    )


def _gpu_replacement(fields: Mapping[str, str], part: str) -> dict[str, str]:
    """Return the fields that put *part*, of a single GPU, in place of the GPUs in all four places."""
    # `gres` puts the prefix before every word: one that had none, and so meant nothing, would come to life.
    others = [item.text for item in parse_tres(fields.get("tres_per_node", "")) if item.generic and not is_gpu(item)]
    changes = {"set.gres": ",".join((part, *others))}
    for name in TRES_FIELDS[1:]:
        left = without_gpus(fields.get(name, ""))
        if left != fields.get(name, ""):
            changes[f"set.{name}"] = left

    # A binding to GPUs would hide the share's device.
    if fields.get("tres_bind"):
        changes["set.tres_bind"] = ""
    return changes


def _share_placement(fields: Mapping[str, str], gpu_types: Sequence[str], trouble: str, cluster: Cluster) -> _Change:
    """Return the change that holds a share to *gpu_types* by features, or *trouble* with why it cannot."""
    if {pool.site_type for pool in cluster.pools if pool.may_hold_shares} <= {*gpu_types}:
        return _Change()  # gres/mps alone leads there
    known = {pool.site_type: pool.holding_feature or "" for pool in cluster.pools}
    features = [known.get(name, "") for name in gpu_types]
    if not all(map(FEATURE.fullmatch, features)):
        return _Change(trouble=f"{trouble}, and no feature is on all of its nodes and on no others")
    wanted, constraint = "|".join(features), fields.get("features", "")
    if fields.get("prefer"):
        return _Change(trouble=f"{trouble}, and the job's --prefer would stand in place of its feature {wanted}")

    # A plain constraint may demand the feature already, as one of those that all have to be there.
    is_plain = bool(PLAIN_CONSTRAINT.fullmatch(constraint)) and "|" not in constraint
    held = constraint if is_plain and wanted in constraint.split("&") else _join_constraint(wanted, constraint)
    if held is None:
        return _Change(trouble=f"{trouble}, and its feature {wanted} cannot be joined to --constraint={constraint}")
    return _Change(fields={"set.features": held} if held != constraint else {}, after=f"constraint {held}")


def _preference(fields: Mapping[str, str], request: GpuRequest, cluster: Cluster) -> _Change:
    """Return the change that makes the job prefer the GPUs of *request*, or why it cannot.

    slurmctld treats a preference that no node could ever meet as a demand. Without `ignore_prefer_validation` it
    refuses such a job, and with it a job that asks for other resources may wait for good;
    `gpusage_slurm.cluster.observation` leaves features only where the site has set that.
    """
    expression = preference_expression(request, cluster.pools, fields.get("features", ""))
    if not expression or request.gpu_type is not None:
        return _Change(trouble=_NO_ROOM)

    # Slices, and whole GPUs that they are cut from, often have one feature: preferring it changes nothing.
    wanted = {*FEATURE.findall(expression)} - {*FEATURE.findall(fields.get("features", ""))}
    nodes = [node for pool in cluster.pools if pool.gpu_count for node in pool.node_features]
    if nodes and all(wanted & {*node} for node in nodes):
        return _Change(trouble=_VAIN)

    if _is_tied(fields):
        return _Change(trouble=_NO_ROOM)
    return _Change(fields={"set.prefer": expression}, after=f"prefer {expression}")


def _is_tied(fields: Mapping[str, str]) -> bool:
    """Return whether a preference could hold the job back: it has its own, names nodes, or asks for other resources."""
    resources = [item for name in TRES_FIELDS for item in parse_tres(fields.get(name, ""))]
    is_tied = any(fields.get(name) for name in ("prefer", "req_nodes", "exc_nodes"))
    return is_tied or any(item.generic and not is_gpu(item) for item in resources)


def preference_expression(request: GpuRequest, pools: tuple[GpuPool, ...], constraint: str) -> str | None:
    """Return the features to prefer, *constraint* repeated inside, for `prefer` replaces it while it is tried.

    ``None`` where there is nothing to prefer, and where *constraint* names a GPU type's feature or cannot be joined.
    """
    features = {pool.site_type: pool.feature for pool in pools if pool.feature and FEATURE.fullmatch(pool.feature)}
    if {*FEATURE.findall(constraint)} & {*features.values()}:
        return None
    wanted = [features[name] for name in request.preferred_gpus if name in features]
    return _join_constraint("|".join(dict.fromkeys(wanted)), constraint) if wanted else None


def _join_constraint(expression: str, constraint: str) -> str | None:
    """Return *expression* joined with *constraint*, ``None`` where that is not plain or the sum too long."""
    # Two plain parts join by &, each in brackets where it has an |: parts of slurmctld read from left to right.
    constraint = constraint.strip()
    if constraint and not PLAIN_CONSTRAINT.fullmatch(constraint):
        return None
    if constraint:
        expression = "&".join(f"({part})" if "|" in part else part for part in (expression, constraint))
    return expression if len(expression.encode()) <= FIELD_BYTES else None
