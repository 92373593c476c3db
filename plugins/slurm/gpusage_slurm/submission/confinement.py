"""How a job that asks for a whole GPU is held to some GPU types: by features, by one type's name, by excluded nodes.

Invariants:

1. A confinement never leads to another type, and in each partition of the job it leads to nodes that could run it.
2. Of the three the one that leads to the most GPUs counts; of equal ones features, which need no list of nodes, then
   the name of a type.
3. A job of several GPUs, whose request nobody changes again, loses no type but slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpusage_hooks.types import Cluster, GpuPool, GpuRequest, NodeKind
from gpusage_slurm.cluster.hostlist import compress_hostlist
from gpusage_slurm.submission.request import FEATURE, FIELD_BYTES

_Place = tuple[GpuPool, NodeKind | None]
"""Nodes of one kind with GPUs of a pool; no kind where the nodes are not known."""


class Confinement(NamedTuple):
    """What leads to some GPU types alone: one of the three.

    Attributes:
        gpu_count: To how many of their GPUs.
        other_types: Names that would each lead to some, too.
        excluded: A hostlist.
    """

    gpu_count: int
    features: tuple[str, ...] = ()
    gpu_type: str = ""
    other_types: tuple[str, ...] = ()
    excluded: str = ""


def find_confinement(
    gpu_types: Sequence[str], request: GpuRequest, cluster: Cluster, can_hold: Callable[[Sequence[str]], bool]
) -> Confinement | None:
    """Return what leads *request* to the most GPUs of *gpu_types*; ``None`` where nothing leads to them alone.

    Args:
        gpu_types: Names of the site's; of several that can be requested the first counts.
        request: One that names a type gets no other.
        cluster: As far as the job may use it.
        can_hold: Returns whether the job's constraint has room for one of these features beside its own.
    """
    pools = requested_pools(request, cluster)
    places, others = _places_of(gpu_types, pools)
    partitions = request.partitions or (cluster.default_partition or "",)

    by_type = Confinement(0)
    if request.gpu_type is None:
        reached_counts = {
            name: _reached_count([each for each in places if each[0].requestable_type == name], request, partitions)
            for name in requestable_types(gpu_types, pools)
        }
        first, *more = [name for name, count in reached_counts.items() if count] or [""]
        by_type = Confinement(reached_counts.get(first, 0), gpu_type=first, other_types=tuple(more))

    def is_worse(reached: Sequence[_Place]) -> bool:
        """Return whether these are of one type, in place of whose name gpusaged might put that of another.

        It does so for one GPU alone: several must keep every type but slices (MIG), which cannot work together.
        """
        types = {pool.site_type for pool, _ in reached}
        if request.gpu_count > 1:
            return not types >= {pool.site_type for pool, _ in places if ":" not in (pool.gpu or "")}
        return bool(by_type.other_types) and cluster.releases and len(types) == 1

    if is_worse([each for each in places if each[0].requestable_type == by_type.gpu_type]) and request.gpu_count > 1:
        by_type = Confinement(0)

    words, reached = _features_of(gpu_types, places, others)
    if not can_hold(words) or is_worse(reached):
        reached = ()
    ways = [Confinement(_reached_count(reached, request, partitions), features=words), by_type]

    small = {name for pool in others for name in pool.node_names}
    excluded = compress_hostlist(sorted(small))
    left = [(pool, kind) for pool, kind in places if kind and {*kind.node_names} - small]
    if all(pool.node_names for pool in others) and 0 < len(excluded) <= FIELD_BYTES and not is_worse(left):
        ways.append(Confinement(_reached_count(left, request, partitions, small), excluded=excluded))
    best = max(ways, key=lambda each: each.gpu_count)
    return best if best.gpu_count else None


def requested_pools(request: GpuRequest, cluster: Cluster) -> tuple[GpuPool, ...]:
    """Return the pools of the GPU type that *request* names; all of them where it names none."""
    named = (request.gpu_type or "").casefold()
    return tuple(pool for pool in cluster.pools if not named or pool.requestable_type.casefold() == named)


def requestable_types(gpu_types: Sequence[str], pools: Sequence[GpuPool]) -> tuple[str, ...]:
    """Return what to request to get one of *gpu_types*, for each that has a name that leads to none but them."""
    others = {pool.requestable_type for pool in pools if pool.gpu_count and pool.site_type not in gpu_types}
    names = {pool.site_type: pool.requestable_type for pool in pools if pool.requestable_type not in ("", *others)}
    return tuple(names[each] for each in gpu_types if each in names)


def preferable_features(gpu_types: Sequence[str], request: GpuRequest, cluster: Cluster) -> tuple[str, ...]:
    """Return features that are on nodes of *gpu_types* alone, of all that *request* may get."""
    return _features_of(gpu_types, *_places_of(gpu_types, requested_pools(request, cluster)))[0]


def _places_of(gpu_types: Sequence[str], pools: Sequence[GpuPool]) -> tuple[list[_Place], list[GpuPool]]:
    """Return the places of *gpu_types*, and the other pools."""
    some = [pool for pool in pools if pool.gpu_count]
    wanted = [pool for pool in some if pool.site_type in gpu_types]
    places: list[_Place] = [(pool, kind) for pool in wanted for kind in pool.node_kinds or (None,)]
    return places, [pool for pool in some if pool not in wanted]


def _reached_count(
    places: Sequence[_Place], request: GpuRequest, partitions: Sequence[str], excluded: Collection[str] = ()
) -> int:
    """Return how many GPUs *places* have for *request*; 0 where they are not enough to run it in one of *partitions*.

    Where it is not known how many GPUs a place has, it has one.
    """
    total = 0
    kinds_in: dict[str, list[NodeKind]] = {name: [] for name in partitions}
    for pool, kind in places:
        names = tuple(name for name in kind.node_names if name not in excluded) if kind else ()
        left = replace(kind, node_names=names) if kind else NodeKind()
        here = [name for name in partitions if kind is None or kind.could_run(request, name)]
        for name in here:
            kinds_in[name].append(left)
        count = max(left.gpu_count, 1) * max(len(names), 1) if kind else pool.gpu_count
        total += count if here else 0
    return total if all(map(request.is_held_by, kinds_in.values())) else 0


def _features_of(
    gpu_types: Sequence[str], places: Sequence[_Place], others: Sequence[GpuPool]
) -> tuple[tuple[str, ...], Sequence[_Place]]:
    """Return features that are on nodes of *gpu_types* alone, not of *others*, and the *places* to which they lead.

    They are as few as lead to every such node that has one; the feature that names a type goes before others.
    """
    exact = {pool.site_type: pool.exact_feature for pool, _ in places}
    if all(name and FEATURE.fullmatch(name) for name in exact.values()):
        return tuple(filter(None, map(exact.get, gpu_types))), places
    if not all(pool.node_features for pool in others):
        return (), ()

    elsewhere = {word.casefold() for pool in others for group in pool.node_features for word in group}
    usual = {pool.feature for pool, _ in places} | {*exact.values()}
    usable_words = [
        {word for word in kind.features if FEATURE.fullmatch(word) and word.casefold() not in elsewhere} if kind else {}
        for _, kind in places
    ]
    left, words = usable_words, list[str]()
    while any(left):
        counted = Counter(word for usable in left for word in usable)
        words.append(min(counted, key=lambda word: (-counted[word], word not in usual, word)))
        left = [usable for usable in left if words[-1] not in usable]
    return tuple(sorted(words)), [place for place, usable in zip(places, usable_words, strict=True) if usable]
