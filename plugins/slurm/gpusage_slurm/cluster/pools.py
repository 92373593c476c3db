"""The pools of a Slurm cluster: its nodes' GPUs, a pool for each type."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, replace

from gpusage_hooks.managers import GpuCatalogue, known_gpu
from gpusage_hooks.types import Cluster, GpuPool, NodeKind, Room
from gpusage_hooks.units import MIB
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.nodes import (
    NodeState,
    counts,
    free_gpus,
    node_room,
    partly_free_percent,
    read_nodes,
    units_per_gpu,
)
from gpusage_slurm.settings import MANAGER

_SLICE = re.compile(r"\d+g\.\d+gb")
_SOME_SLICE = re.compile(r"(?:^|[^a-z0-9])(?:mig|\dg)(?:[^a-z0-9]|$)")
"""A word that names slices but not which: ``a100_mig``, ``3g``."""


def read_cluster(partitions: Iterable[scontrol.Line], catalogue: GpuCatalogue) -> Cluster:
    """Return the cluster of this host's Slurm commands.

    Args:
        partitions: As `scontrol.partitions` returns them.
        catalogue: By whose names pools are known.

    Raises:
        RequestError: slurmctld does not answer.
    """
    version = scontrol.version()
    return Cluster(
        manager=MANAGER,
        version="{}.{:02}".format(*version),
        pools=pools_of(read_nodes(version), catalogue),
        default_partition=next((each["PartitionName"] for each in partitions if each.get("Default") == "YES"), None),
    )


def pools_of(nodes: Iterable[NodeState], catalogue: GpuCatalogue) -> tuple[GpuPool, ...]:
    """Return a pool for each GPU type of *nodes*, in order of their first appearance.

    GPUs without a type go by the feature that names them.
    """
    grouped: dict[str, list[tuple[NodeState, int]]] = {}
    types_of: list[tuple[NodeState, set[str]]] = []
    for node in nodes:
        kinds = counts(node.gres, "gpu")
        if kinds.keys() == {""}:
            features = sorted(node.features)
            named = next((feature for feature in features if known_gpu(catalogue, feature)), "")
            kinds = {"" if _names_slices(features) else named: kinds[""]}
        types_of.append((node, {*kinds}))
        for name, count in kinds.items():
            grouped.setdefault(name, []).append((node, count))

    pools = []
    shared = [(node, types) for node, types in types_of if node.has_shares]
    for name, members in grouped.items():
        pool = _pool(name, members, catalogue)
        exact = exact_feature(name, types_of, pool.feature)
        # gres/mps starts only where it is: for a share, nodes without it do not count.
        of_shares = exact_feature(name, shared, pool.feature) if exact is None else None
        pools.append(replace(pool, feature=pool.feature or exact, exact_feature=exact, share_feature=of_shares))
    return tuple(pools)


def exact_feature(site_type: str, nodes: Sequence[tuple[NodeState, set[str]]], usual: str | None) -> str | None:
    """Return a feature that is on exactly the nodes of *site_type*; ``None`` where there is none.

    Args:
        site_type: The type that the nodes must have, and no other.
        nodes: All nodes that count, each with its GPU types.
        usual: The feature to take if it is one; else the first in the order of the alphabet, so that it stays the same.
    """
    on, elsewhere = list[set[str]](), set[str]()
    for node, types in nodes:
        if types == {site_type}:
            on.append({*node.features})
        else:
            elsewhere |= {feature.casefold() for feature in node.features}

    exact = sorted(feature for feature in set.intersection(*on) if feature.casefold() not in elsewhere) if on else []
    is_alone = all(types == {site_type} for _, types in nodes if site_type in types)
    if not is_alone or not exact:
        return None
    return usual if usual in exact else exact[0]


def _pool(site_type: str, members: list[tuple[NodeState, int]], catalogue: GpuCatalogue) -> GpuPool:
    """Return the pool of *site_type*; *members* are its nodes, each with how many GPUs of it the node has."""
    free, units, rooms = 0, set[int](), dict[NodeKind, list[Room]]()
    free_by_kind = Counter[NodeKind]()
    for node, _ in members:
        units.add(units_per_gpu(node.gres, site_type))

        kind = NodeKind(
            has_shares=node.has_shares,
            partitions=tuple(sorted(node.partitions)),
            features=tuple(sorted(node.features)),
            cpu_count=node.cpu_count,
            host_memory_bytes=node.memory_mib * MIB,
        )
        free_here = free_gpus(node.gres, node.gres_used, site_type)
        free += free_here if node.usable else 0
        free_by_kind[kind] += free_here if node.open else 0
        rooms.setdefault(kind, []).append(node_room(node, site_type))

    # Only a feature of all nodes leads to this type and leaves none of them out.
    common = set.intersection(*(set(node.features) for node, _ in members))
    other_types = set.intersection(*(set(counts(node.gres, "gpu")) for node, _ in members)) - {site_type, ""}

    # Sites write a feature a100_sxm4 for the type a100-sxm4.
    plain = site_type.lower().replace("-", "_")

    # A share may land on any node that has shares, so the weakest limit of these counts.
    limits = {node.limited_by for node, _ in members if node.has_shares} or {"none"}
    weakest = next(limit for limit in ("none", "cap", "wall") if limit in limits)
    reasons = dict.fromkeys(node.why_no_wall for node, _ in members if node.has_shares and node.why_no_wall)
    return GpuPool(
        gpu=_catalogue_name(site_type, sorted(common), sorted(other_types), catalogue),
        site_type=site_type,
        gpu_count=sum(count for _, count in members),
        free_gpu_count=free,
        # Nodes that count differently are no place where one number of units means one share; those that count none
        # never run one.
        mps_per_gpu=units.pop() if len(units := units - {0}) == 1 else None,
        shards_per_gpu=max(units_per_gpu(node.gres, site_type, "shard") for node, _ in members) or None,
        feature=next((word for word in sorted(common) if word.lower().replace("-", "_") == plain), None),
        partitions=tuple(sorted({name for node, _ in members for name in node.partitions})),
        node_features=tuple(sorted({tuple(sorted({*node.features, *node.possible_features})) for node, _ in members})),
        node_gpu_counts=tuple(sorted({count for _, count in members if count})),
        limited_by=weakest,
        why_no_wall="; ".join(reasons),
        node_kinds=tuple(
            replace(
                kind,
                room=replace(max(rooms_of_kind, key=astuple), node=""),
                free_gpu_count=free_by_kind[kind],
                rooms=tuple(room for room in rooms_of_kind if room.share_percent),
            )
            for kind, rooms_of_kind in rooms.items()
        ),
        free_share_percent=max((partly_free_percent(node, site_type) for node, _ in members if node.usable), default=0),
    )


def _catalogue_name(
    site_type: str, features: Sequence[str], types: Sequence[str], catalogue: GpuCatalogue
) -> str | None:
    """Return the catalogue's name of *site_type*, or of a feature of its nodes if the type is unknown.

    A type that is only a slice's profile, ``3g.20gb``, is of the GPU that a feature names, or another of the *types* of
    the nodes. One that names slices in another way is not known: no slice is taken for a whole GPU.
    """
    if _SLICE.search(site_type.lower()):
        names = [*(f"{name}:{site_type}" for name in (*features, *types)), site_type]
    elif _names_slices([site_type]):
        names = []
    else:
        names = [site_type, *([] if _names_slices(features) else features)]

    known = (known_gpu(catalogue, name) for name in names)
    return next((name for name in known if name), None)


def _names_slices(words: Iterable[str]) -> bool:
    """Return whether any of *words* names MIG slices but not which."""
    return any(_SOME_SLICE.search(word.lower()) for word in words)
