"""What a Slurm cluster has: its nodes' GPUs as pools of one type each.

Nodes are read through PySlurm where it is installed and of Slurm's own version, else from Slurm's commands.
"""

from __future__ import annotations

import importlib.metadata
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from functools import cache
from typing import Any

from gpusage_hooks.managers import GpuCatalogue, known_gpu
from gpusage_hooks.types import Cluster, GpuPool, NodeKind, Room
from gpusage_hooks.units import MIB
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.free import counts, free_gpus, free_share_percent, of_type
from gpusage_slurm.cluster.states import states_of, words_of
from gpusage_slurm.submission.request import MANAGER
from gpusage_slurm.tres import SHARES, parse_list

_log = logging.getLogger(__name__)
_KEPT_AWAY = ("MAINT", "RESERVED", "PLANNED", "REBOOT", "BLOCKED", "POWERING", "NO_RESPOND")
_OUT_OF_USE = ("DOWN", "DRAIN", "FAIL", "FUTURE", "NOT_RESPONDING", "POWERED_DOWN", "POWER_DOWN", "UNKNOWN")
_SHARED = re.compile(r"(?:^|,)(?:mps|shard)(?=[:,]|$)[^,(]*(?:\([^()]*\))?")
_SLICE = re.compile(r"\d+g\.\d+gb")
_SOME_SLICE = re.compile(r"(?:^|[^a-z0-9])(?:mig|\dg)(?:[^a-z0-9]|$)")
"""A word that tells of slices and not of which: ``a100_mig``, ``3g``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node, as far as GPUs go.

    Attributes:
        gres: As configured, for example ``gpu:v100:2,mps:v100:200``.
        gres_used: As allocated, in the same form; Slurm adds indices in brackets.
        usable: Whether a job could start there.
        possible_features: What it has, or may have after a restart that Slurm makes for a job.
        open: Whether a job could start there now, as far as nothing keeps jobs away.
        idle: The same, and nothing runs there.
        planned: Whether Slurm plans a job there.
    """

    name: str
    gres: str
    gres_used: str
    features: tuple[str, ...]
    partitions: tuple[str, ...] = ()
    usable: bool = True
    possible_features: tuple[str, ...] = ()
    open: bool = True
    idle: bool = False
    planned: bool = False
    memory_mib: int = 0
    cpu_count: int = 0
    used_memory_mib: int = 0
    used_cpu_count: int = 0

    @property
    def has_shares(self) -> bool:
        """Whether its GPUs can be shared."""
        return any(resource.name in SHARES for resource in parse_list(self.gres))


def read_cluster(partitions: Iterable[scontrol.Line], catalogue: GpuCatalogue) -> Cluster:
    """Return the cluster that this host's Slurm commands talk to.

    Args:
        partitions: As `scontrol.partitions` returns them.
        catalogue: By whose names pools are known.

    Raises:
        RequestError: slurmctld does not answer.
    """
    version = scontrol.version()
    nodes = (_pyslurm_nodes() if pyslurm_version() == version else None) or map(parse_node, scontrol.nodes())
    return Cluster(
        manager=MANAGER,
        version="{}.{:02}".format(*version),
        pools=pools_of(nodes, catalogue),
        default_partition=next((each["PartitionName"] for each in partitions if each.get("Default") == "YES"), None),
    )


def pools_of(nodes: Iterable[NodeState], catalogue: GpuCatalogue) -> tuple[GpuPool, ...]:
    """Return one pool for each GPU type of *nodes*, in the order in which they are met.

    GPUs without a type go by the feature that tells what they are.
    """
    grouped: dict[str, list[tuple[NodeState, int]]] = {}
    names: list[tuple[NodeState, set[str]]] = []
    for node in nodes:
        kinds = counts(node.gres, "gpu")
        if kinds.keys() == {""}:
            kinds = {_telling_feature(node, catalogue): kinds[""]}
        names.append((node, {*kinds}))
        for name, count in kinds.items():
            grouped.setdefault(name, []).append((node, count))
    pools = (_pool(name, members, catalogue) for name, members in grouped.items())
    return tuple(replace(pool, exact_feature=_exact(pool, names)) for pool in pools)


def parse_node(node: Mapping[str, Any]) -> NodeState:
    """Return a node from Slurm's JSON: texts joined by commas in 22.05, lists from 23.02 on."""
    states = states_of(node)
    usable = not any(state.startswith(_OUT_OF_USE) for state in states)
    return NodeState(
        name=str(node.get("name", "")),
        gres=_usable_gres(node),
        gres_used=str(node.get("gres_used") or ""),
        features=words_of(node.get("active_features") or node.get("features")),
        partitions=words_of(node.get("partitions")),
        usable=usable,
        possible_features=words_of(node.get("features")),
        open=usable and not any(state.startswith(_KEPT_AWAY) for state in states),
        idle="IDLE" in states and states <= {"IDLE", "PLANNED"},
        planned="PLANNED" in states,
        memory_mib=int(node.get("real_memory") or 0),
        cpu_count=int(node.get("cpus") or 0),
        used_memory_mib=int(node.get("alloc_memory") or 0),
        used_cpu_count=int(node.get("alloc_cpus") or 0),
    )


def _usable_gres(node: Mapping[str, Any]) -> str:
    """Return the node's resources, without shares where it keeps cores for whole GPUs (RestrictedCoresPerGPU).

    Before 25.11 a share gets none of these cores, and slurmctld refuses a job for which no others are left.
    """
    gres = str(node.get("gres") or "")
    return _SHARED.sub("", gres).lstrip(",") if node.get("res_cores_per_gpu") else gres


@cache
def pyslurm_version() -> tuple[int, int] | None:
    """Return major and minor of the installed PySlurm, ``None`` where there is none."""
    try:
        return scontrol.parse_version(importlib.metadata.version("pyslurm"))
    except (importlib.metadata.PackageNotFoundError, ValueError, IndexError):
        return None


def _pool(site_type: str, members: list[tuple[NodeState, int]], catalogue: GpuCatalogue) -> GpuPool:
    free, units, rooms = 0, set[int](), dict[NodeKind, list[Room]]()
    free_by_kind = Counter[NodeKind]()
    for node, count in members:
        shares = of_type(counts(node.gres, "mps"), site_type)
        units.add(shares // count if count else 0)
        free += free_gpus(node.gres, node.gres_used, site_type) if node.usable else 0
        rooms.setdefault(_kind(node), []).append(_room(node, site_type))
        free_by_kind[_kind(node)] += free_gpus(node.gres, node.gres_used, site_type) if node.open else 0
    common = set.intersection(*(set(node.features) for node, _ in members))
    return GpuPool(
        gpu=_catalogue_name(site_type, common, _types_beside(site_type, members), catalogue),
        site_type=site_type,
        gpu_count=sum(count for _, count in members),
        free_gpu_count=free,
        # Nodes that count differently are no place where one number of units means one share.
        mps_per_gpu=(units.pop() or None) if len(units) == 1 else None,
        feature=_feature(site_type, common),
        partitions=tuple(sorted({name for node, _ in members for name in node.partitions})),
        node_features=tuple(sorted({tuple(sorted({*node.features, *node.possible_features})) for node, _ in members})),
        node_kinds=tuple(
            replace(
                kind,
                room=replace(max(found, key=astuple), node=""),
                free_gpu_count=free_by_kind[kind],
                rooms=tuple(room for room in found if room.share_percent),
            )
            for kind, found in rooms.items()
        ),
        free_share_percent=max((_part_free(node, site_type) for node, _ in members if node.usable), default=0),
    )


def free_units(node: NodeState) -> int:
    """Return the largest free part of a GPU of *node*, in the units that its shares are counted in."""
    kinds = counts(node.gres, "gpu")
    return max((_units(node, kind) * _room(node, kind).share_percent // 100 for kind in kinds), default=0)


def _units(node: NodeState, site_type: str) -> int:
    """Return the units that one GPU of *site_type* counts on *node*."""
    count = of_type(counts(node.gres, "gpu"), site_type)
    return of_type(counts(node.gres, "mps"), site_type) // count if count else 0


def _kind(node: NodeState) -> NodeKind:
    return NodeKind(
        partitions=tuple(sorted(node.partitions)),
        features=tuple(sorted(node.features)),
        cpu_count=node.cpu_count,
        host_memory_bytes=node.memory_mib * MIB,
    )


def free_whole_gpus(node: NodeState) -> int:
    """Return how many GPUs of *node*, of whatever type, nobody uses."""
    return sum(free_gpus(node.gres, node.gres_used, kind) for kind in counts(node.gres, "gpu"))


def _room(node: NodeState, site_type: str) -> Room:
    if not node.open:
        return Room()
    return Room(
        share_percent=100 if free_gpus(node.gres, node.gres_used, site_type) else _part_free(node, site_type),
        cpu_count=max(node.cpu_count - node.used_cpu_count, 0),
        host_memory_bytes=max(node.memory_mib - node.used_memory_mib, 0) * MIB,
        node=node.name,
    )


def _part_free(node: NodeState, site_type: str) -> int:
    """Return the largest part that is free of those of *node*'s GPUs that are shared now, in percent."""
    return free_share_percent(node.gres_used, site_type, _units(node, site_type))


def _types_beside(site_type: str, members: list[tuple[NodeState, int]]) -> set[str]:
    """Return the other GPU types that all nodes with *site_type* have."""
    types = (set(counts(node.gres, "gpu")) for node, _ in members)
    return set.intersection(*types) - {site_type, ""}


def _catalogue_name(
    site_type: str, features: Iterable[str], types: Iterable[str], catalogue: GpuCatalogue
) -> str | None:
    """Return what the catalogue calls *site_type*; where the type says nothing, what a feature of the nodes says.

    A type that is only a slice's profile, ``3g.20gb``, is of the GPU that a feature names, or another of the *types* of
    the nodes. One that tells of slices in another way is not known: no slice is taken for a whole GPU.
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


def _telling_feature(node: NodeState, catalogue: GpuCatalogue) -> str:
    """Return the feature that names the GPUs of *node*; empty where none does, or where one tells of slices."""
    features = sorted(node.features)
    sliced = any(_SOME_SLICE.search(feature.lower()) for feature in features)
    return "" if sliced else next((feature for feature in features if known_gpu(catalogue, feature)), "")


def _exact(pool: GpuPool, names: Iterable[tuple[NodeState, set[str]]]) -> str | None:
    """Return the feature of *pool* where it holds a job to that GPU type, whatever else nodes have by their *names*."""
    wanted = (pool.feature or "").casefold()
    there = (types for node, types in names if wanted in map(str.casefold, node.features))
    return pool.feature if wanted and all(kinds == {pool.site_type} for kinds in there) else None


def _pyslurm_nodes() -> list[NodeState] | None:
    """Return the nodes as PySlurm has them, ``None`` where it fails: Slurm's commands are asked then.

    Its newer ``pyslurm.Nodes`` does not tell the shares in use (22.5 no GRES at all, later what Slurm accounts), so
    its older table is read, which has Slurm's own texts; 25.11 has that no more.
    """
    try:
        import pyslurm  # noqa: PLC0415 - optional, and of Slurm's own version only

        return [parse_node(_as_slurm_has_it(node)) for node in pyslurm.node().get().values()]
    except Exception as error:  # noqa: BLE001 - a binding to C of another project's
        _log.warning("PySlurm cannot list the nodes (%s); Slurm's commands are asked instead", error)
        return None


def _as_slurm_has_it(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node of PySlurm's table by the names of Slurm's JSON."""
    gres, used = (",".join(words_of(node.get(name))) for name in ("gres", "gres_used"))
    state = str(node.get("state", "")).split("+")
    return {
        **node,
        "gres": gres,
        "gres_used": used,
        "state": state,
        "active_features": node.get("features_active"),
        "alloc_memory": node.get("alloc_mem"),
    }
