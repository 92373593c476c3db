"""The pools of a Slurm cluster: its nodes' GPUs, a pool for each type."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, replace
from typing import NamedTuple

from gpusage.devices.shares import has_thread_limits
from gpusage_hooks.managers import GpuCatalogue, known_gpu
from gpusage_hooks.types import Cluster, GpuPool, NodeKind
from gpusage_hooks.units import MIB
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.nodes import (
    SLICE,
    NodeState,
    counts,
    free_gpus,
    node_room,
    partly_free_percent,
    read_nodes,
    units_per_gpu,
)
from gpusage_slurm.settings import MANAGER

_SOME_SLICE = re.compile(r"(?<![a-z])mig(?![a-z])|(?<![a-z0-9])\dg(?![a-z])")
"""A word that names slices but not which: ``a100mig``, ``3g``, ``1g5gb``."""
_MEMORY = re.compile(r"(?:(?:gpu|hbm|vram)[_-]?|[_-])(\d{2,3})(?:gb?)?|(\d{2,3})gb?")
"""A feature that may tell a GPU's memory, without the GPU's name before it."""


def read_cluster(partitions: Iterable[scontrol.Line], catalogue: GpuCatalogue) -> Cluster:
    """Return the cluster of this host's Slurm commands.

    Args:
        partitions: As `scontrol.partitions` returns them.
        catalogue: By whose names pools are known.

    Raises:
        RequestError: slurmctld does not answer.
    """
    version = scontrol.version()
    pools = pools_of(read_nodes(version), catalogue)
    return Cluster(
        manager=MANAGER,
        version="{}.{:02}".format(*version),
        pools=pools,
        notes=naming_notes(pools, catalogue),
        default_partition=next((each["PartitionName"] for each in partitions if each.get("Default") == "YES"), None),
    )


class _Kind(NamedTuple):
    """The GPUs of one type of a node.

    Attributes:
        name: What the site calls them: their type, else the feature that names them; empty where nothing does.
        request: Their type, by which a job can ask for them; empty where they have none.
        gpu: Of the catalogue.
    """

    name: str
    request: str
    gpu: str | None
    gpu_count: int


def pools_of(nodes: Iterable[NodeState], catalogue: GpuCatalogue) -> tuple[GpuPool, ...]:
    """Return a pool for each GPU type of *nodes*, in order of their first appearance.

    GPUs without a type go by the feature that names them. GPUs of one type of which features name two, as of two sizes
    of memory, are two pools, called as the catalogue does.
    """
    kinds_of = [(node, _kinds(node, catalogue)) for node in nodes]
    gpus_of: dict[str, set[str | None]] = {}
    for _, kinds in kinds_of:
        for kind in kinds:
            gpus_of.setdefault(kind.name, set()).add(kind.gpu)

    grouped: dict[tuple[str, str], list[tuple[NodeState, _Kind]]] = {}
    types_of: list[tuple[NodeState, set[str]]] = []
    for node, kinds in kinds_of:
        names = [kind.name if len(gpus_of[kind.name]) == 1 else kind.gpu or kind.name for kind in kinds]
        types_of.append((node, {*names}))
        for name, kind in zip(names, kinds, strict=True):
            grouped.setdefault((name, kind.request), []).append((node, kind))

    pools = []
    shared = [(node, types) for node, types in types_of if node.has_shares]
    for (name, _), members in grouped.items():
        pool = _pool(name, members)
        # Else one that names a GPU is understood by more people than one that names its node's processor.
        usual = pool.feature or next(
            (word for word in sorted(members[0][0].features) if known_gpu(catalogue, word)), None
        )
        exact = exact_feature(name, types_of, usual)
        # gres/mps starts only where it is: for a share, nodes without it do not count.
        of_shares = exact_feature(name, shared, usual) if exact is None else None
        pools.append(replace(pool, feature=pool.feature or exact, exact_feature=exact, share_feature=of_shares))
    return tuple(pools)


def naming_notes(pools: Sequence[GpuPool], catalogue: GpuCatalogue) -> tuple[str, ...]:
    """Return what to write in slurm.conf so that jobs get the GPUs of *pools*, a sentence for each trouble."""
    notes = []
    for pool in pools:
        if pool.gpu is not None:
            continue
        first, *more = pool.node_names
        where = first + (f" and {len(more)} more" if more else "")
        own = [pool.site_type] if pool.site_type else []
        gres = ":".join(("gpu", *own, str(max(pool.node_gpu_counts, default=1))))
        todo = "write Features=a100 there, or Gres=gpu:a100:4, by a name that `gpusage gpus` lists"
        if names_slices([*own, *(word for group in pool.node_features for word in group)]):
            todo = "name the profile, as Gres=gpu:a100_1g.5gb:7, or let AutoDetect=nvml in gres.conf do so"
        notes.append(f"{pool.gpu_count} GPUs are not understood, Gres={gres} of {where}: {todo}")

    # Without a feature a share lands on any type that has some, so only one that holds on all of them is given.
    unled = [pool.site_type for pool in pools if pool.mps_per_gpu and pool.holding_feature is None]
    if unled and sum(pool.may_hold_shares for pool in pools) > 1:
        name = unled[0] or "a100"
        notes.append(f"no feature leads shares to {', '.join(unled)} alone: write Features={name}, say, on their nodes")
    return (*notes, *filter(None, (how_to_share(pools, catalogue),)))


def how_to_share(pools: Iterable[GpuPool], catalogue: GpuCatalogue) -> str:
    """Return the lines by which the whole GPUs of *pools* that cannot be shared could be; empty where all can."""
    known = ((pool, catalogue.find(pool.gpu)) for pool in pools if pool.gpu and not pool.mps_per_gpu)
    whole = ((each, gpu) for each, gpu in known if each.gpu_count and gpu.parent_gpu is None)
    bare = [each for each, gpu in whole if gpu.vendor == "nvidia" and has_thread_limits(gpu)]
    lines = "; ".join(
        f"on each node with {count} ',mps:{100 * count}' at the end of Gres, and in its gres.conf 'Name=mps "
        f"Count={100 * count} File=/dev/nvidia{f'[0-{count - 1}]' if count > 1 else 0} Flags=all_sharing'"
        for count in sorted({count for pool in bare for count in pool.node_gpu_counts})
    )
    types = ", ".join(pool.site_type for pool in bare)
    return f"To share {types}: GresTypes=gpu,mps in slurm.conf; {lines}" if bare else ""


def exact_feature(site_type: str, nodes: Sequence[tuple[NodeState, set[str]]], usual: str | None) -> str | None:
    """Return a feature that is on exactly the nodes of *site_type*; ``None`` where there is none.

    Args:
        site_type: The type that the nodes must have, and no other.
        nodes: All nodes that count, each with its GPU types.
        usual: The feature to take if it is one; else the first in the order of the alphabet, so that it stays the same.
    """
    on = [{*node.features} for node, types in nodes if types == {site_type}]
    others = [{*node.features, *node.possible_features} for node, types in nodes if types != {site_type}]
    elsewhere = {word.casefold() for features in others for word in features}
    exact = sorted(feature for feature in set.intersection(*on) if feature.casefold() not in elsewhere) if on else []
    is_alone = all(types == {site_type} for _, types in nodes if site_type in types)
    if not is_alone or not exact:
        return None
    return usual if usual in exact else exact[0]


def _pool(name: str, members: list[tuple[NodeState, _Kind]]) -> GpuPool:
    """Return the pool called *name*; *members* are its nodes, each with its GPUs of the type."""
    request = members[0][1].request
    units = {units_per_gpu(node.gres, request) for node, _ in members}
    nodes_of: dict[NodeKind, list[NodeState]] = {}
    for node, gpus in members:
        kind = NodeKind(
            has_shares=node.has_shares,
            partitions=tuple(sorted(node.partitions)),
            features=tuple(sorted(node.features)),
            cpu_count=node.cpu_count,
            host_memory_bytes=node.memory_mib * MIB,
            gpu_count=gpus.gpu_count,
        )
        nodes_of.setdefault(kind, []).append(node)

    # Only a feature of all nodes leads to this type and leaves none of them out.
    common = set.intersection(*(set(node.features) for node, _ in members))

    # Sites write a feature a100_sxm4 for the type a100-sxm4.
    plain = name.lower().replace("-", "_")

    # A share may land on any node that has shares, so the weakest limit of these counts.
    limits = {node.limited_by for node, _ in members if node.has_shares} or {"none"}
    weakest = next(limit for limit in ("none", "cap", "wall") if limit in limits)
    reasons = dict.fromkeys(node.why_no_wall for node, _ in members if node.has_shares and node.why_no_wall)
    return GpuPool(
        gpu=members[0][1].gpu,
        site_type=name,
        request_type=None if request == name else request,
        gpu_count=sum(kind.gpu_count for _, kind in members),
        free_gpu_count=sum(free_gpus(node.gres, node.gres_used, request) for node, _ in members if node.usable),
        # Nodes that count differently are no place where one number of units means one share; those that count none
        # never run one.
        mps_per_gpu=units.pop() if len(units := units - {0}) == 1 else None,
        shards_per_gpu=max(units_per_gpu(node.gres, request, "shard") for node, _ in members) or None,
        feature=next((word for word in sorted(common) if word.lower().replace("-", "_") == plain), None),
        partitions=tuple(sorted({name for node, _ in members for name in node.partitions})),
        node_features=tuple(sorted({tuple(sorted({*node.features, *node.possible_features})) for node, _ in members})),
        node_gpu_counts=tuple(sorted({kind.gpu_count for _, kind in members if kind.gpu_count})),
        node_names=tuple(node.name for node, _ in members),
        limited_by=weakest,
        why_no_wall="; ".join(reasons),
        node_kinds=tuple(_with_room(kind, nodes, request) for kind, nodes in nodes_of.items()),
        free_share_percent=max((partly_free_percent(node, request) for node, _ in members if node.usable), default=0),
    )


def _with_room(kind: NodeKind, nodes: Sequence[NodeState], request: str) -> NodeKind:
    """Return *kind* with the names of its *nodes* and the room on their GPUs of the type *request*."""
    rooms = [node_room(node, request) for node in nodes]
    return replace(
        kind,
        room=replace(max(rooms, key=astuple), node=""),
        rooms=tuple(room for room in rooms if room.share_percent),
        free_gpu_count=sum(free_gpus(node.gres, node.gres_used, request) for node in nodes if node.open),
        node_names=tuple(node.name for node in nodes),
    )


def _kinds(node: NodeState, catalogue: GpuCatalogue) -> list[_Kind]:
    """Return the GPUs of *node*, by their types."""
    features, by_type = sorted(node.features), counts(node.gres, "gpu")
    if by_type.keys() == {""}:
        named = next((feature for feature in features if known_gpu(catalogue, feature)), "")
        name = "" if names_slices(features) else named
        return [_Kind(name, "", _catalogue_name(name, features, [], catalogue), by_type[""])]
    return [
        _Kind(name, name, _catalogue_name(name, features, sorted({*by_type} - {name, ""}), catalogue), count)
        for name, count in by_type.items()
    ]


def _catalogue_name(
    site_type: str, features: Sequence[str], types: Sequence[str], catalogue: GpuCatalogue
) -> str | None:
    """Return the catalogue's name of *site_type*, or of a feature of its node if the type is unknown.

    A type that is only a slice's profile, ``3g.20gb``, is of the GPU that a feature names, or another of the *types* of
    the node. One that names slices in another way is not known: no slice is taken for a whole GPU. Of a GPU that has
    two sizes of memory, a feature may tell which: ``80gb``, ``gpu80``, ``a100_80gb``.
    """
    profile = SLICE.search(site_type.lower())
    if profile:
        board = site_type[: profile.start()].rstrip("._:-")
        boards = [board] if board else [*features, *types]
    elif names_slices([site_type]):
        return None
    else:
        boards = [site_type, *([] if names_slices(features) else features)]

    tail = f":{profile[0]}" if profile else ""
    for board in boards:
        words = (feature.lower().removeprefix(board.lower()) for feature in features)
        sizes = {match[1] or match[2] for match in map(_MEMORY.fullmatch, words) if match}
        sized = {known_gpu(catalogue, f"{board}-{size}gb{tail}") for size in sizes} - {None}
        known = next(iter(sized)) if len(sized) == 1 else known_gpu(catalogue, f"{board}{tail}")
        if known:
            return known
    return known_gpu(catalogue, site_type)


def names_slices(words: Iterable[str]) -> bool:
    """Return whether any of *words* names MIG slices but not which."""
    return any(_SOME_SLICE.search(word.lower()) for word in words)
