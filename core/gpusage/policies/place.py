"""Where a job may land: a pool of the cluster, its GPU, and what the job needs there.

Invariants:

1. A GPU type that the user named narrows the places; a preference never does, for it is only tried first.
2. What cannot be judged (an unfamiliar model, an interval wider than half a GPU) is never counted as good.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gpusage_hooks.types import Case, Gpu, GpuPool, GpuRequest, Interval, Place
from gpusage_hooks.units import MIB

LIMITING = (7, 0)
"""The first compute capability whose MPS holds a client to its thread percentage: Volta.

Source: NVIDIA, Multi-Process Service, "Volta MPS Execution Resource Provisioning".
"""
WIDEST_SHARE = 0.5
"""An interval wider than half a GPU does not tell a half from a whole one."""


def limits_threads(gpu: Gpu) -> bool:
    """Tell whether MPS holds a client on *gpu* to its thread percentage."""
    return not why_unlimited(gpu)


def why_unlimited(gpu: Gpu) -> str:
    """Return why MPS does not hold a client on *gpu* to its thread percentage; empty where it does."""
    if gpu.vendor != "nvidia":
        return "not of Nvidia"
    return "older than Volta" if gpu.compute_capability < LIMITING else ""


def admitted(case: Case) -> tuple[Place, ...]:
    """Return the places of *case* that have GPUs, of the named type where the user named one."""
    return tuple(place for place in case.places if admits(place.pool, case.request))


def admits(pool: GpuPool, request: GpuRequest) -> bool:
    """Tell whether *pool* has GPUs, of the type that *request* insists on."""
    named = (request.gpu_type or "").casefold()
    return pool.gpu_count > 0 and named in ("", pool.site_type.casefold(), (pool.gpu or "").casefold())


def judged(case: Case) -> tuple[Place, ...]:
    """Return the places of *case* where the job surely fits, and whose predictions are good enough to choose by."""
    return tuple(place for place in admitted(case) if place.need.fits and doubt_of_whole(place) is None)


def not_understood(case: Case) -> tuple[GpuPool, ...]:
    """Return the pools that may run the job and whose GPU type the catalogue does not know."""
    return tuple(pool for pool in case.cluster.pools if pool.gpu is None and admits(pool, case.request))


def doubt(place: Place) -> str | None:
    """Return why the prediction for *place* is too uncertain to share a GPU by, ``None`` where it is not."""
    whole = doubt_of_whole(place)
    if whole is None and _is_wide(place.need.sm_activity):
        return f"on {place.name} the predicted SM activity is uncertain by more than half a GPU"
    return whole


def doubt_of_whole(place: Place) -> str | None:
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


def memory_share(place: Place) -> Interval:
    """Return the part of the GPU's memory that the job needs; above 1 where it does not fit."""
    need, whole = place.need.memory_bytes, place.gpu.memory_bytes
    return Interval(value=need.value / whole, low=need.low / whole, high=need.high / whole)


def memory_cap_bytes(where: Iterable[Place]) -> int:
    """Return the memory that is enough on each of *where*: the largest high end, in whole MiB."""
    return cap_bytes_of(max(place.need.memory_bytes.high for place in where))


def cap_bytes_of(booked_bytes: float) -> int:
    """Return *booked_bytes* as a cap says them: in whole MiB, rounded up."""
    return math.ceil(booked_bytes / MIB) * MIB


def memory_percent(place: Place, booked_bytes: float) -> int:
    """Return what part of the GPU's memory at *place* a cap of *booked_bytes* is, in percent; may exceed 100."""
    return -(-100 * cap_bytes_of(booked_bytes) // place.gpu.memory_bytes)


def step_times_s(case: Case) -> dict[str, float]:
    """Return how long a step takes on each GPU type where the job of *case* fits, of those that it may choose among."""
    if case.request.gpu_type is not None:
        return {}
    where = judged(case)
    return {place.name: step_time_s(place) for place in where} if len(where) > 1 else {}


def step_time_s(place: Place) -> float:
    """Return how long a step is expected to take on a whole GPU of *place*; what places are put in order by."""
    return place.need.step_time_s.value


def preferable(where: Iterable[Place]) -> tuple[str, ...]:
    """Return the GPU types of *where* that a job can be made to prefer, in that order."""
    return tuple(dict.fromkeys(place.name for place in where if place.pool.feature is not None))


def names(where: Iterable[Place]) -> str:
    """Return the GPU types of *where*, for people."""
    return ", ".join(dict.fromkeys(place.name for place in where))
