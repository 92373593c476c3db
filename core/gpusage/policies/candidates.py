"""Where a job may land: a pool of the cluster, its GPU, and what the job needs there.

Invariants:

1. A GPU type that the user named narrows the places; a preference never does, for it is only tried first.
2. A prediction that is too uncertain (an unfamiliar model, an interval wider than half a GPU) never counts as good.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from gpusage.devices.catalogue import name_key, name_words
from gpusage.devices.shares import least_share_percent, memory_cap_bytes
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import GpuCatalogue
from gpusage_hooks.types import Candidate, Cluster, Gpu, GpuPool, GpuRequest, Interval, PolicyInput

LIMITING = (7, 0)
"""The first compute capability whose MPS holds a client to its thread percentage: Volta.

Source: NVIDIA, Multi-Process Service, "Volta MPS Execution Resource Provisioning".
"""
WIDEST_SHARE = 0.5
"""An interval wider than half a GPU does not distinguish half a GPU from a whole one."""


def limits_threads(gpu: Gpu) -> bool:
    """Return whether MPS holds a client on *gpu* to its thread percentage."""
    return not why_unlimited(gpu)


def why_unlimited(gpu: Gpu) -> str:
    """Return why MPS does not hold a client on *gpu* to its thread percentage; empty where it does."""
    if gpu.vendor != "nvidia":
        return "not of Nvidia"
    return "older than Volta" if gpu.compute_capability < LIMITING else ""


def admitted_candidates(case: PolicyInput) -> tuple[Candidate, ...]:
    """Return the places of *case* that have GPUs, of the named type where the user named one."""
    return tuple(place for place in case.places if admits(place.pool, case.request))


def admits(pool: GpuPool, request: GpuRequest) -> bool:
    """Return whether *pool* has GPUs, of the type that *request* insists on."""
    named = (request.gpu_type or "").casefold()
    return pool.gpu_count > 0 and named in ("", pool.site_type.casefold(), (pool.gpu or "").casefold())


def without_forbidden(cluster: Cluster, names: Sequence[str], catalogue: GpuCatalogue) -> Cluster:
    """Return *cluster* without the GPU types that *names* stand for: ``a100`` means each kind of A100.

    Raises:
        DeviceError: A name is neither the site's nor the catalogue's.
        RequestError: No type is left.
    """
    for name in names:
        if not any(_is_called(pool, name, catalogue) for pool in cluster.pools):
            catalogue.find(name)
    pools = tuple(pool for pool in cluster.pools if not any(_is_called(pool, name, catalogue) for name in names))
    if cluster.pools and not pools:
        raise no_allowed_type_error(names)
    return cluster if len(pools) == len(cluster.pools) else replace(cluster, pools=pools)


def no_allowed_type_error(names: Sequence[str]) -> RequestError:
    """Return the error for a job that forbids, by *names*, every GPU type that it could get."""
    return RequestError(
        f"Key 'forbid' must leave a GPU type that the job can get; got {'+'.join(names)!r}. Remove one of them."
    )


def _is_called(pool: GpuPool, name: str, catalogue: GpuCatalogue) -> bool:
    """Return whether *name* is one of *pool*'s, of the GPU that it is a slice of, or has some words of such a name."""
    gpus = [catalogue.find(pool.gpu)] if pool.gpu else []
    gpus += [catalogue.find(gpu.parent_gpu) for gpu in gpus if gpu.parent_gpu]
    kinds = (pool.site_type, *(gpu.name for gpu in gpus))
    known = (*kinds, *(alias for gpu in gpus for alias in gpu.aliases))
    return any(map(partial(_is_kind, name_words(name)), kinds)) or name_key(name) in map(name_key, known)


def _is_kind(words: Sequence[str], kind: str) -> bool:
    """Return whether the GPU called *kind* is one of those that *words* mean: its first word is theirs, all are its."""
    own = name_words(kind)
    return bool(own and words) and own[0] == words[0] and {*words} <= {*own}


def rankable_candidates(case: PolicyInput) -> tuple[Candidate, ...]:
    """Return the places of *case* where the job surely fits, and whose predictions are good enough to choose by."""
    return tuple(
        place for place in admitted_candidates(case) if place.need.fits and whole_gpu_uncertainty_reason(place) is None
    )


def unknown_pools(case: PolicyInput) -> tuple[GpuPool, ...]:
    """Return the pools that may run the job and whose GPU type the catalogue does not know."""
    return tuple(pool for pool in case.cluster.pools if pool.gpu is None and admits(pool, case.request))


def uncertainty_reason(place: Candidate) -> str | None:
    """Return why the prediction for *place* is too uncertain to share a GPU by, ``None`` where it is not."""
    whole = whole_gpu_uncertainty_reason(place)
    if whole is None and _is_wide(place.need.sm_activity):
        return f"on {place.name} the predicted SM activity is uncertain by more than half a GPU"
    return whole


def whole_gpu_uncertainty_reason(place: Candidate) -> str | None:
    """Return why the prediction for *place* is too uncertain to choose a whole GPU by, ``None`` where it is not.

    How much of its threads a job keeps busy does not matter there.
    """
    if not place.need.familiar:
        return f"on {place.name} the workload is unlike those that the prediction was fitted on"
    if _is_wide(memory_share(place)):
        return f"on {place.name} the predicted memory is uncertain by more than half a GPU"
    return None


def _is_wide(share: Interval) -> bool:
    return not all(map(math.isfinite, (share.low, share.high))) or share.high - share.low > WIDEST_SHARE


def memory_share(place: Candidate) -> Interval:
    """Return the part of the GPU's memory that the job needs; above 1 where it does not fit."""
    need, whole = place.need.required_bytes, place.gpu.memory_bytes
    return Interval(value=need.value / whole, low=need.low / whole, high=need.high / whole)


def needed_bytes(place: Candidate, request: GpuRequest) -> float:
    """Return the memory that a part of the GPU at *place* must have, for *request* to be given that part.

    If a run that fails for want of memory cannot be repeated unseen, the part must hold what the job likely takes.
    """
    return place.need.share_memory_bytes if request.repeatable else place.need.certain_memory_bytes


def least_cap_bytes(where: Iterable[Candidate], share_percent: int) -> int:
    """Return what a share of *share_percent* may use of the memory at any of *where*: the part of the smallest GPU."""
    return min(memory_cap_bytes(place.gpu.memory_bytes, share_percent) for place in where)


def memory_percent(place: Candidate, needed_bytes: float) -> int:
    """Return the smallest share at *place* whose part of the memory holds *needed_bytes*; may exceed 100."""
    return least_share_percent(needed_bytes, place.gpu.memory_bytes)


def step_times_s(case: PolicyInput) -> dict[str, float]:
    """Return how long a step takes on each GPU type where the job of *case* fits, of those that it may choose among."""
    if case.request.gpu_type is not None:
        return {}
    where = rankable_candidates(case)
    return {place.name: step_time_s(place) for place in where} if len(where) > 1 else {}


def step_time_s(place: Candidate) -> float:
    """Return how long a step is expected to take on a whole GPU of *place*; places are sorted by it."""
    return place.need.step_time_s.value


def preferable_types(where: Iterable[Candidate]) -> tuple[str, ...]:
    """Return the GPU types of *where* that a job can be made to prefer, in that order."""
    return tuple(dict.fromkeys(place.name for place in where if place.pool.feature is not None))


def type_names(where: Iterable[Candidate]) -> str:
    """Return the GPU types of *where*, for people."""
    return ", ".join(dict.fromkeys(place.name for place in where))
