"""Decision -> what to set in a Slurm job.

Invariants:

1. Keys are ``set.X``, a field of job_submit's job description, or ``env.X``, a variable of the job. Nothing else.
2. What the job asks for beside GPUs stays as it was: other resources, its constraint, its own `--prefer`.
3. A decision that cannot be put into this site's words changes nothing: no fields, and ``after`` equals ``before``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

from gpusage_hooks import hookimpl
from gpusage_hooks.types import Cluster, Code, Decision, GpuPool, GpuRequest, Job, Rendered
from gpusage_hooks.units import MIB
from gpusage_slurm.request import MANAGER, PLACES
from gpusage_slurm.tres import is_gpu, parse_list, without_gpus

MARK = "GPUSAGE_DECISION"
"""The variable by which the node side and an inner srun know a job whose GPU became a share."""

_MAXIMUM_FIELD_BYTES = 1024  # slurmctld's limit on what a plugin leaves behind, facts 4
_WHOLE = 100  # percent
_FEATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=-]*")
_CONSTRAINT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=-]*(?:[&|][A-Za-z0-9_][A-Za-z0-9_.:=-]*)*")


@hookimpl(trylast=True)
def render_decision(job: Job, decision: Decision, cluster: Cluster) -> Rendered | None:
    """Put *decision* into Slurm's words: ``gres`` in the site's own MPS units, ``prefer``, and variables."""
    if job.submission.manager != MANAGER:
        return None
    before = job.request_text
    reachable = cluster.within(job.request.partitions)
    fields, after = _changes(job.submission.fields, decision.request, reachable)
    if decision.code is not Code.REWRITE or not fields:
        return Rendered(before=before, after=before, fields=MappingProxyType({}))
    after = after if after.startswith("gres/") else f"{before}, {after}"
    return Rendered(before=before, after=after, fields=MappingProxyType(fields))


def mps_units(percent: int, pools: tuple[GpuPool, ...], gpu_type: str | None) -> int | None:
    """Return the site's own MPS units of *percent* of a GPU: on no pool that may run the job is it less.

    ``None`` where a pool that may run the job could not give so many: slurmctld refuses a job that no node can run, and
    what else (memory, a constraint, a node's name) ties the job to that very pool is not for us to know.
    ``None``, too, where less than a GPU would be all of its units.
    """
    named = (gpu_type or "").casefold()
    counts = [
        pool.mps_per_gpu or 0 for pool in pools if pool.gpu_count > 0 and named in ("", pool.site_type.casefold())
    ]
    units = max(math.ceil(percent * max(counts, default=0) / 100), 1)
    # Where a GPU counts few units, a part of it rounds up to the whole: nothing would be left for others.
    return units if counts and units < min(counts) + (percent >= _WHOLE) else None


def prefer_expression(request: GpuRequest, pools: tuple[GpuPool, ...], constraint: str) -> str | None:
    """Return the features to prefer, *constraint* repeated inside, for `prefer` replaces it while it is tried.

    ``None`` where there is nothing to prefer, or *constraint* is of a form (counts, brackets) that cannot be joined.
    """
    features = {pool.site_type: pool.feature for pool in pools if pool.feature and _FEATURE.fullmatch(pool.feature)}
    wanted = [features[name] for name in request.preferred_gpus if name in features]
    wished = "|".join(dict.fromkeys(wanted))
    constraint = constraint.strip()
    if not wished or (constraint and not _CONSTRAINT.fullmatch(constraint)):
        return None
    if constraint:
        wished = f"{_grouped(wished)}&{_grouped(constraint)}"
    return wished if len(wished.encode()) <= _MAXIMUM_FIELD_BYTES else None


def _changes(fields: Mapping[str, str], request: GpuRequest, cluster: Cluster) -> tuple[dict[str, str], str]:
    """Return what to set, and the request as it then is, for people."""
    changes: dict[str, str] = {}
    after = []
    percent = request.mps_thread_percent
    units = None if percent is None else mps_units(percent, cluster.pools, request.gpu_type)
    if percent is not None and units is None:
        return {}, ""
    if units is not None:
        share = f"mps:{request.gpu_type}:{units}" if request.gpu_type else f"mps:{units}"
        changes |= _share_fields(fields, share, request.memory_cap_bytes)
        after.append(f"gres/{share}")
    wished = prefer_expression(request, cluster.pools, fields.get("features", ""))
    if wished and request.gpu_type is None and _may_prefer(fields):
        changes["set.prefer"] = wished
        after.append(f"prefer {wished}")
    return changes, ", ".join(after)


def _share_fields(fields: Mapping[str, str], share: str, memory_cap_bytes: int | None) -> dict[str, str]:
    """Return the fields that put *share* in place of the GPUs in all four places."""
    # `gres` puts the prefix before every word: one that had none, and so meant nothing, would come to life.
    others = [item.text for item in parse_list(fields.get("tres_per_node", "")) if item.generic and not is_gpu(item)]
    changes = {"set.gres": ",".join((share, *others))}
    for place in PLACES[1:]:
        left = without_gpus(fields.get(place, ""))
        if left != fields.get(place, ""):
            changes[f"set.{place}"] = left
    if fields.get("tres_bind"):
        changes["set.tres_bind"] = ""
    changes[f"env.{MARK}"] = share
    if memory_cap_bytes is not None:
        # Device 0, for the job sees only the device that it shares.
        changes["env.CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={math.ceil(memory_cap_bytes / MIB)}M"
    return changes


def _may_prefer(fields: Mapping[str, str]) -> bool:
    """Tell whether a preference can do no harm: slurmctld treats one that no node could ever meet as a demand.

    Without `ignore_prefer_validation` it refuses such a job, and with it a job that asks for other resources may wait
    for good; `gpusage_slurm.preference` leaves features only where the site has set that.
    """
    named = any(fields.get(name) for name in ("prefer", "req_nodes", "exc_nodes"))
    resources = [item for place in PLACES for item in parse_list(fields.get(place, ""))]
    return not named and all(is_gpu(item) for item in resources if item.generic)


def _grouped(expression: str) -> str:
    return f"({expression})" if re.search(r"[&|]", expression) else expression
