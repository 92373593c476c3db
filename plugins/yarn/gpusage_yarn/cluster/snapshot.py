"""A YARN cluster: the GPUs of each node label as a pool, read from the ResourceManager.

Invariants:

1. A label is a pool where nodes with it offer shares, or whole GPUs; labels of other nodes are not ours.
2. GPUs of nodes without a label appear in a note only: their generation is unknown. Where no node has a label, the site
   may say the type of them all, which then stands for a label that YARN does not know.
3. Room is that of one container on one GPU: sums over GPUs are used only for nodes that do not report each GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpusage.service.reservations import Reservation, remaining_capacity
from gpusage_hooks.managers import GpuCatalogue, known_gpu
from gpusage_hooks.types import Cluster, GpuPool, NodeKind, Room
from gpusage_hooks.units import MIB
from gpusage_yarn.cluster.documents import Document, as_list, resource_amounts
from gpusage_yarn.cluster.queues import DEFAULT, GPUS, MASTER_MIB, Queue, creates_queues, parse_queues, queue_names
from gpusage_yarn.cluster.tags import read_pending_claims
from gpusage_yarn.settings import MANAGER, YarnSettings
from gpusage_yarn.share_plan import SHARE, WHOLE_GPU

_DEFAULTS = YarnSettings()
_SLICE = re.compile(r"(\dg)[-_](\d+gb)", re.IGNORECASE)
"""Of ``a100-3g-20gb``, a slice (MIG): a label can hold no dot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSize:
    """A container's part of a node."""

    share: int = 0
    memory_mib: int = 0
    vcores: int = 0


ANY_SIZE = ContainerSize()
MASTER = ContainerSize(memory_mib=MASTER_MIB, vcores=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node; ``share`` counts hundredths of GPUs.

    Attributes:
        label: ``""`` where it has none.
        usable: Whether a container could start there.
        address: Where it answers over HTTP.
        total: All that it has, its GPUs counted together.
        free: What is not given out.
        gpus: Those that it offers whole, as ``yarn.io/gpu``.
        largest: The largest free part of one of its GPUs; ``None`` if the node does not report it.
    """

    name: str
    label: str
    usable: bool
    address: str = ""
    total: ContainerSize = ANY_SIZE
    free: ContainerSize = ANY_SIZE
    gpus: int = 0
    free_gpus: int = 0
    largest: int | None = None

    @property
    def room(self) -> int:
        """The largest share that a container could have at once."""
        return min(self.free.share, WHOLE_GPU if self.largest is None else self.largest, WHOLE_GPU)

    def fits(self, size: ContainerSize) -> bool:
        """Return whether a container of *size* could start at once."""
        enough = self.free.memory_mib >= size.memory_mib and self.free.vcores >= size.vcores
        return self.usable and enough and self.room >= size.share


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """A cluster as a ResourceManager showed it at some moment.

    Attributes:
        resource_types: Names and the most that a container can have of each.
        labels: Node labels that exist, also those without a node.
        reservations: What was submitted a moment ago and has no container yet.
        creates_queues: Whether a queue that is not there may come into being when it is named.
        assumed_type: The GPU type that stands for a label, as the site says; ``""`` where nodes have labels.
    """

    version: str
    nodes: tuple[NodeState, ...]
    labels: tuple[str, ...]
    queues: tuple[Queue, ...]
    resource_types: Mapping[str, int]
    creates_queues: bool = False
    assumed_type: str = ""
    reservations: tuple[Reservation, ...] = ()

    def nodes_with_label(self, label: str) -> tuple[NodeState, ...]:
        """Return the nodes with *label*, ``""`` for nodes without any."""
        return tuple(node for node in self.nodes if node.label == label)

    def room(self, label: str) -> int:
        """Return the largest share that a container could have at once on a node with *label*."""
        return max((node.room for node in self.nodes_with_label(label) if node.usable), default=0)

    def fits(self, label: str, size: ContainerSize) -> bool:
        """Return whether a container of *size* could start at once on a node with *label*."""
        return any(node.fits(size) for node in self.nodes_with_label(label))


def read_snapshot(
    get: Callable[[str], Document], settings: YarnSettings = _DEFAULTS, *, brief: bool = False
) -> ClusterSnapshot:
    """Return the cluster by *get*, a function from a path below ``/ws/v1/cluster`` to a document.

    Args:
        get: Asks.
        settings: The site's.
        brief: Leave out the version and the labels, which cost a question each.
    """
    info = {} if brief else get("info").get("clusterInfo", {})
    labels = {} if brief else get("get-node-labels")

    scheduler = get("scheduler").get("scheduler", {}).get("schedulerInfo", {})
    documents, share = as_list(get("nodes"), "nodes", "node"), settings.share_resource
    gpu_type = "" if any(any(node.get("nodeLabels") or ()) for node in documents) else settings.gpu_type
    nodes = tuple(parse_node(node, share, gpu_type) for node in documents)
    return ClusterSnapshot(
        version=str(info.get("resourceManagerVersion", "")),
        nodes=nodes,
        reservations=read_pending_claims(get, {node.label for node in nodes}),
        labels=tuple(str(label["name"]) for label in as_list(labels, "nodeLabelInfo") if "name" in label),
        queues=parse_queues(scheduler, share=share, gpu_type=gpu_type),
        resource_types=resource_amounts(scheduler.get("maximumAllocation")),
        creates_queues=creates_queues(scheduler),
        assumed_type=gpu_type,
    )


def build_cluster(snapshot: ClusterSnapshot, catalogue: GpuCatalogue) -> Cluster:
    """Return the cluster that *snapshot* shows, without the room that is given away already."""
    grouped: dict[str, list[NodeState]] = {}
    for node in snapshot.nodes:
        if node.total.share or node.gpus:
            grouped.setdefault(node.label, []).append(node)

    # Nobody knows of which generation the GPUs without a label are.
    bare = sum(_count(node) for node in grouped.pop("", []))
    notes = (f"{bare} GPUs are on nodes without a label, and are not used",) if bare else ()
    seen = Cluster(
        manager=MANAGER,
        version=snapshot.version,
        pools=tuple(
            # A plan asks for shares, so of nodes with one label those count that offer shares, if any does.
            _pool(label, [node for node in nodes if node.total.share] or nodes, snapshot.queues, catalogue)
            for label, nodes in sorted(grouped.items())
        ),
        default_partition=DEFAULT if any(DEFAULT in names for _, names in queue_names(snapshot.queues)) else None,
        notes=notes,
    )

    # Claims of applications that wait are no node's usage yet.
    return remaining_capacity(seen, Counter(snapshot.reservations))


def parse_node(node: Mapping[str, Any], share: str = SHARE, gpu_type: str = "") -> NodeState:
    """Return a node from the ResourceManager's JSON; one with GPUs and without a label has *gpu_type* for a label."""
    used, free = resource_amounts(node.get("usedResource")), resource_amounts(node.get("availableResource"))
    total = resource_amounts(node.get("totalResource")) or {
        name: used.get(name, 0) + amount for name, amount in free.items()
    }

    usable = node.get("state") == "RUNNING"
    free = free if usable else {}
    if free.get("vcores", 0) < 0:  # the calculator does not count them, so there are always enough
        free = {**free, "vcores": total.get("vcores", 0)}

    labels = node.get("nodeLabels") or [""]
    return NodeState(
        name=str(node.get("id", "")),
        label=str(labels[0]) or (gpu_type if total.get(share) or total.get(GPUS) else ""),
        usable=usable,
        address=str(node.get("nodeHTTPAddress", "")),
        total=_size(total, share),
        free=_size(free, share),
        gpus=total.get(GPUS, 0),
        free_gpus=free.get(GPUS, 0),
    )


def _size(resources: Mapping[str, int], share: str) -> ContainerSize:
    return ContainerSize(
        share=resources.get(share, 0), memory_mib=resources.get("memory-mb", 0), vcores=resources.get("vcores", 0)
    )


def _pool(label: str, nodes: list[NodeState], queues: Iterable[Queue], catalogue: GpuCatalogue) -> GpuPool:
    shared = nodes[0].total.share > 0
    names = (
        name
        for queue, known in queue_names(queues)
        if (queue.has_shares(label) if shared else queue.is_accessible(label))
        for name in known
    )

    # Kinds of nodes, by what they have beside GPUs, with the room on each node that has some.
    rooms: dict[tuple[int, int], list[Room]] = {}
    for node in nodes:
        alike = rooms.setdefault((node.total.vcores, node.total.memory_mib), [])
        if node.usable and node.room:
            memory_bytes = node.free.memory_mib * MIB
            room = Room(
                share_percent=node.room, cpu_count=node.free.vcores, host_memory_bytes=memory_bytes, node=node.name
            )
            alike.append(room)

    return GpuPool(
        gpu=known_gpu(catalogue, label) or known_gpu(catalogue, _SLICE.sub(r"\1.\2", label)),
        site_type=label,
        gpu_count=sum(map(_count, nodes)),
        free_gpu_count=sum(node.free.share // WHOLE_GPU if node.total.share else node.free_gpus for node in nodes),
        mps_per_gpu=WHOLE_GPU if shared else None,
        feature=label,
        exact_feature=label,
        partitions=tuple(sorted(names)) or ("",),
        node_gpu_counts=tuple(sorted({*map(_count, nodes)} - {0})),
        node_kinds=tuple(
            NodeKind(cpu_count=vcores, host_memory_bytes=memory_mib * MIB, rooms=tuple(alike))
            for (vcores, memory_mib), alike in rooms.items()
        ),
        free_share_percent=max(node.room if node.usable else 0 for node in nodes),
        why_no_wall="root alone can limit a cgroup, and a NodeManager is not root",
    )


def _count(node: NodeState) -> int:
    return node.total.share // WHOLE_GPU if node.total.share else node.gpus
