"""Where a job may land: a pool of the cluster, its GPU, and the need of the job there.

Invariants:

1. A GPU type that the user named narrows the candidates; a preference never does, for it is only tried first.
2. A prediction that is too uncertain (an unfamiliar model, an interval wider than half a GPU) never counts as good.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import ge

from gpusage.devices.catalogue import name_key, name_words
from gpusage.devices.shares import has_thread_limits
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import GpuCatalogue
from gpusage_hooks.types import Candidate, Cluster, Gpu, GpuPool, GpuRequest, Interval, PolicyInput
from gpusage_hooks.units import WHOLE_PERCENT

WIDEST_SHARE = 0.5
"""An interval wider than half a GPU does not distinguish half a GPU from a whole one."""


def why_unlimited(gpu: Gpu) -> str:
    """Return why MPS does not hold a client on *gpu* to its thread percentage; empty where it does."""
    if gpu.vendor != "nvidia":
        return "not of Nvidia"
    return "" if has_thread_limits(gpu) else "older than Volta"


def admits(pool: GpuPool, request: GpuRequest) -> bool:
    """Return whether *pool* has GPUs, of the type that *request* insists on, on nodes that are large enough for it."""
    # Users write the type as the site or as the catalogue does, in any case.
    named = (request.gpu_type or "").casefold()
    names = (pool.site_type.casefold(), (pool.request_type or "").casefold(), (pool.gpu or "").casefold())
    least = (request.cpu_count, request.host_memory_bytes, request.node_gpu_count)
    kinds = pool.node_kinds if pool.gpu_count else ()
    sizes = [(kind.cpu_count, kind.host_memory_bytes, kind.gpu_count or request.node_gpu_count) for kind in kinds]
    is_large = any(all(map(ge, size, least)) for size in sizes)
    return pool.gpu_count > 0 and (is_large or not sizes) and (not named or named in names)


def admitted_candidates(policy_input: PolicyInput) -> tuple[Candidate, ...]:
    """Return the candidates of *policy_input* that have GPUs, of the user's type where the user names a type."""
    return tuple(candidate for candidate in policy_input.candidates if admits(candidate.pool, policy_input.request))


def without_whole_gpus(policy_input: PolicyInput) -> bool:
    """Return whether every GPU that the job of *policy_input* may get is a slice (MIG)."""
    candidates = admitted_candidates(policy_input)
    for candidate in candidates:
        if candidate.gpu.parent_gpu is None:
            return False
    return bool(candidates) and not unknown_pools(policy_input)


def partitions_of(policy_input: PolicyInput) -> tuple[str, ...]:
    """Return the partitions that may run the job; ``""`` is any."""
    return policy_input.request.partitions or (policy_input.cluster.default_partition or "",)


def unknown_pools(policy_input: PolicyInput) -> tuple[GpuPool, ...]:
    """Return the pools that may run the job and whose GPU type the catalogue does not know."""
    return tuple(pool for pool in policy_input.cluster.pools if pool.gpu is None and admits(pool, policy_input.request))


def if_shared(policy_input: PolicyInput) -> PolicyInput:
    """Return *policy_input* as it would be if its whole GPUs of known types could be shared."""
    candidates = tuple(
        replace(each, pool=shared_pool(each.pool)) if each.gpu.parent_gpu is None else each
        for each in policy_input.candidates
    )
    pools = {each.pool.site_type: each.pool for each in candidates}
    cluster = policy_input.cluster
    cluster = replace(cluster, pools=tuple(pools.get(pool.site_type, pool) for pool in cluster.pools))
    return replace(policy_input, candidates=candidates, cluster=cluster)


def shared_pool(pool: GpuPool) -> GpuPool:
    """Return *pool* as it would be if its GPUs were divided: 100 units each, and a name that leads to it alone."""
    name = pool.exact_feature or pool.feature or pool.site_type
    kinds = tuple(replace(kind, has_shares=True) for kind in pool.node_kinds)
    return replace(pool, mps_per_gpu=WHOLE_PERCENT, feature=name, exact_feature=name, node_kinds=kinds)


def rankable_candidates(policy_input: PolicyInput) -> tuple[Candidate, ...]:
    """Return the candidates where the job surely fits, and whose predictions are good enough to choose by."""
    return tuple(
        candidate
        for candidate in admitted_candidates(policy_input)
        if candidate.need.fits
        and is_predictable(candidate)
        and (policy_input.request.gpu_count <= 1 or holds_all_gpus(candidate.pool, policy_input))
    )


def holds_all_gpus(pool: GpuPool, policy_input: PolicyInput) -> bool:
    """Return whether nodes of *pool* alone could give the job all of its GPUs, in one of its partitions."""
    request, partitions = policy_input.request, partitions_of(policy_input)
    reached = ((kind for kind in pool.node_kinds if kind.could_run(request, name)) for name in partitions)
    is_held = not pool.node_kinds or any(map(request.is_held_by, reached))
    return is_held and pool.gpu_count >= request.gpu_count


def is_predictable(candidate: Candidate) -> bool:
    """Return whether the prediction for *candidate* is certain enough to choose a whole GPU by.

    How much of its threads a job keeps busy does not matter there, so only the memory's interval counts.
    """
    share = memory_share(candidate)
    is_finite = math.isfinite(share.low) and math.isfinite(share.high)
    return candidate.need.familiar and is_finite and share.high - share.low <= WIDEST_SHARE


def memory_share(candidate: Candidate) -> Interval:
    """Return the part of the GPU's memory that the job needs; above 1 where it does not fit."""
    need, whole = candidate.need.required_bytes, candidate.gpu.memory_bytes
    return Interval(value=need.value / whole, low=need.low / whole, high=need.high / whole)


def step_time_s(candidate: Candidate) -> float:
    """Return how long a step is expected to take on a whole GPU of *candidate*; candidates are sorted by it."""
    return candidate.need.step_time_s.value


def step_times_s(policy_input: PolicyInput) -> Mapping[str, float]:
    """Return how long a step takes on each GPU type where the job fits, by the site's name of the type.

    Only of a job that may choose: of one that names its type, or could run on one type alone, nothing is kept.
    """
    if policy_input.request.gpu_type is not None:
        return {}
    candidates = rankable_candidates(policy_input)
    return {candidate.name: step_time_s(candidate) for candidate in candidates} if len(candidates) > 1 else {}


def preferable_types(candidates: Iterable[Candidate]) -> tuple[str, ...]:
    """Return the GPU types of *candidates* that a job can be made to prefer, in that order."""
    return tuple(dict.fromkeys(candidate.name for candidate in candidates if candidate.pool.feature is not None))


def type_names(candidates: Iterable[Candidate]) -> str:
    """Return the GPU types of *candidates*, for people."""
    return ", ".join(dict.fromkeys(candidate.name for candidate in candidates))


def without_forbidden(cluster: Cluster, names: Sequence[str], catalogue: GpuCatalogue) -> Cluster:
    """Return *cluster* without the GPU types that *names* stand for: ``a100`` means each kind of A100.

    Raises:
        DeviceError: A name is neither the site's nor the catalogue's.
        RequestError: No type is left.
    """
    for name in names:
        if not any(_is_called(pool, name, catalogue) for pool in cluster.pools):
            catalogue.find(name)  # a type that this cluster lacks is fine, a name that nobody knows is a slip

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
    """Return whether *name* is a name of *pool*'s GPU or of the GPU that it is a slice of, or has some words of it."""
    gpus = [catalogue.find(pool.gpu)] if pool.gpu else []
    gpus += [catalogue.find(gpu.parent_gpu) for gpu in gpus if gpu.parent_gpu]
    kinds = (pool.site_type, *(gpu.name for gpu in gpus))

    # 'a100' means 'a100-sxm4-40gb': the first word is the same, and the name has all the others.
    words = name_words(name)
    for kind in kinds:
        own = name_words(kind)
        if own and words and own[0] == words[0] and {*words} <= {*own}:
            return True

    aliases = (alias for gpu in gpus for alias in gpu.aliases)
    return name_key(name) in map(name_key, (*kinds, *aliases))
