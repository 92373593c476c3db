"""The pools of a Slurm cluster: its nodes' GPUs, one pool for each type."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, replace

from gpusage_hooks.managers import GpuCatalogue, known_gpu
from gpusage_hooks.types import Cluster, GpuPool, NodeKind, Room
from gpusage_hooks.units import MIB
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.nodes import (
    NodeState,
    count_of_type,
    counts,
    free_gpus,
    node_room,
    partly_free_percent,
    read_nodes,
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
    """Return one pool for each GPU type of *nodes*, in order of their first appearance.

    GPUs without a type go by the feature that names them.
    """
    grouped: dict[str, list[tuple[NodeState, int]]] = {}
    names: list[tuple[NodeState, set[str]]] = []
    for node in nodes:
        kinds = counts(node.gres, "gpu")
        if kinds.keys() == {""}:
            kinds = {_type_feature(node, catalogue): kinds[""]}
        names.append((node, {*kinds}))
        for name, count in kinds.items():
            grouped.setdefault(name, []).append((node, count))
    pools = (_pool(name, members, catalogue) for name, members in grouped.items())
    return tuple(replace(pool, exact_feature=_exact_feature(pool, names)) for pool in pools)


def _pool(site_type: str, members: list[tuple[NodeState, int]], catalogue: GpuCatalogue) -> GpuPool:
    free, units, rooms = 0, set[int](), dict[NodeKind, list[Room]]()
    free_by_kind = Counter[NodeKind]()
    for node, count in members:
        shares = count_of_type(counts(node.gres, "mps"), site_type)
        units.add(shares // count if count else 0)
        free += free_gpus(node.gres, node.gres_used, site_type) if node.usable else 0
        rooms.setdefault(_node_kind(node), []).append(node_room(node, site_type))
        free_by_kind[_node_kind(node)] += free_gpus(node.gres, node.gres_used, site_type) if node.open else 0
    common = set.intersection(*(set(node.features) for node, _ in members))
    return GpuPool(
        gpu=_catalogue_name(site_type, common, _other_types(site_type, members), catalogue),
        site_type=site_type,
        gpu_count=sum(count for _, count in members),
        free_gpu_count=free,
        # Nodes that count differently are no place where one number of units means one share.
        mps_per_gpu=(units.pop() or None) if len(units) == 1 else None,
        feature=_feature(site_type, common),
        partitions=tuple(sorted({name for node, _ in members for name in node.partitions})),
        node_features=tuple(sorted({tuple(sorted({*node.features, *node.possible_features})) for node, _ in members})),
        node_gpu_counts=tuple(sorted({count for _, count in members if count})),
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


def _node_kind(node: NodeState) -> NodeKind:
    return NodeKind(
        partitions=tuple(sorted(node.partitions)),
        features=tuple(sorted(node.features)),
        cpu_count=node.cpu_count,
        host_memory_bytes=node.memory_mib * MIB,
    )


def _other_types(site_type: str, members: list[tuple[NodeState, int]]) -> set[str]:
    """Return the other GPU types that all nodes with *site_type* have."""
    types = (set(counts(node.gres, "gpu")) for node, _ in members)
    return set.intersection(*types) - {site_type, ""}


def _catalogue_name(
    site_type: str, features: Iterable[str], types: Iterable[str], catalogue: GpuCatalogue
) -> str | None:
    """Return the catalogue's name of *site_type*, or of a feature of its nodes if the type is unknown.

    A type that is only a slice's profile, ``3g.20gb``, is of the GPU that a feature names, or another of the *types* of
    the nodes. One that names slices in another way is not known: no slice is taken for a whole GPU.
    """
    if _SLICE.search(site_type.lower()):
        names = [*(f"{name}:{site_type}" for name in (*sorted(features), *sorted(types))), site_type]
    elif _SOME_SLICE.search(site_type.lower()):
        names = []
    else:
        sliced = any(_SOME_SLICE.search(feature.lower()) for feature in features)
        names = [site_type, *([] if sliced else sorted(features))]
    known = (known_gpu(catalogue, name) for name in names)
    return next((name for name in known if name), None)


def _feature(site_type: str, features: Iterable[str]) -> str | None:
    """Return the feature that all nodes of a type have and that is named after it."""
    plain = site_type.lower().replace("-", "_")
    return next((word for word in sorted(features) if word.lower().replace("-", "_") == plain), None)


def _type_feature(node: NodeState, catalogue: GpuCatalogue) -> str:
    """Return the feature that names the GPUs of *node*; empty if there is none, or if one denotes MIG slices."""
    features = sorted(node.features)
    sliced = any(_SOME_SLICE.search(feature.lower()) for feature in features)
    return "" if sliced else next((feature for feature in features if known_gpu(catalogue, feature)), "")


def _exact_feature(pool: GpuPool, names: Iterable[tuple[NodeState, set[str]]]) -> str | None:
    """Return the feature of *pool* if no node with it has another GPU type; *names* are the types of each node."""
    wanted = (pool.feature or "").casefold()
    there = (types for node, types in names if wanted in map(str.casefold, node.features))
    return pool.feature if wanted and all(kinds == {pool.site_type} for kinds in there) else None
