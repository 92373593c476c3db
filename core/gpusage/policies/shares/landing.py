"""Where a share may land that binds its job to no GPU type, and why no share can be asked for there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpusage.policies.place import admitted_candidates, limits_threads, type_names, unknown_pools, why_unlimited
from gpusage_hooks.types import Candidate, Cluster, Decision, PolicyInput

NO_GPU = "no GPU that it may use can be shared"


def shared_places(case: PolicyInput) -> tuple[Candidate, ...]:
    """Return the places of *case* whose GPUs can be shared; a slice (MIG) is given whole."""
    return tuple(
        place for place in admitted_candidates(case) if place.pool.mps_per_gpu and place.gpu.parent_gpu is None
    )


def obstacle(case: PolicyInput, where: Sequence[Candidate]) -> str | None:
    """Return why no share can be asked for on *where*, whatever its size; ``None`` where one can."""
    if case.cluster.unshared:
        return unshared_reason(case.cluster)
    unknown = [pool.site_type for pool in unknown_pools(case) if pool.mps_per_gpu]
    if unknown:
        return f"a share could land on {', '.join(unknown)}, which is not in the catalogue"
    if not where:
        return NO_GPU
    others = [place for place in admitted_candidates(case) if place not in where]
    if others:
        # A manager refuses a job that only these could run: what else ties it to them is not for us to know.
        return f"it may be bound to {type_names(others)}, which cannot be shared"
    old = [place for place in where if not limits_threads(place.gpu)]
    if old:
        why = why_unlimited(old[0].gpu)
        return f"a share could land on {type_names(old)}, where MPS cannot hold a job to its share ({why})"
    too_small = [place for place in where if not place.need.fits]
    return f"a share could land on {type_names(too_small)}, which may be too small" if too_small else None


def unshared_reason(cluster: Cluster) -> str:
    """Return why *cluster*, as a job sees it, keeps GPUs whole where the job may run; empty where it does not."""
    return "; ".join(dict.fromkeys(cluster.unshared.values()))


def keep_whole_gpu(draft: Decision, reason: str, plugin: str) -> Decision:
    """Return *draft* with the *reason* why a whole GPU is kept, as decided by *plugin*."""
    return replace(draft, reasons=(*draft.reasons, f"a whole GPU is kept: {reason}"), plugin=plugin)
