"""What a YARN cluster has: the GPUs of each node label as one pool, read from the ResourceManager.

Invariants:

1. A label is a pool where nodes with it offer shares, or whole GPUs; labels of other nodes are not ours.
2. GPUs of nodes without a label are told in a note: nobody can know of which generation they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpusage.devices.catalogue import Catalogue
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Cluster, GpuPool
from gpusage_yarn.plan import SHARE, WHOLE_GPU
from gpusage_yarn.request import MANAGER

WHOLE_GPUS = "yarn.io/gpu"
DEFAULT_QUEUE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node, as far as GPUs go; ``share`` counts hundredths of GPUs.

    Attributes:
        label: ``""`` where it has none.
        usable: Whether a container could start there.
        address: Where it answers over HTTP.
    """

    name: str
    label: str
    usable: bool
    address: str = ""
    share: int = 0
    free_share: int = 0
    gpus: int = 0
    free_gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One leaf queue.

    Attributes:
        labels: Those that it may use; ``*`` stands for all.
        closed: Those of which it has no capacity.
    """

    name: str
    labels: frozenset[str]
    closed: frozenset[str] = frozenset()
    default_label: str = ""

    def opens(self, label: str) -> bool:
        """Tell whether an application in this queue gets containers on nodes with *label*."""
        return ("*" in self.labels or label in self.labels) and label not in self.closed


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one look at a ResourceManager shows.

    Attributes:
        resource_types: Names and the most that a container can have of each.
        labels: Node labels that exist, also those without a node.
    """

    version: str
    nodes: tuple[NodeState, ...]
    labels: tuple[str, ...]
    queues: tuple[Queue, ...]
    resource_types: Mapping[str, int]

    def free_share(self, label: str) -> int:
        """Return the largest share that one container could have at once on a node with *label*."""
        free = [min(node.free_share, WHOLE_GPU) for node in self.nodes if node.label == label and node.usable]
        return max(free, default=0)


def read_view(get: Any, share: str = SHARE, *, brief: bool = False) -> View:  # noqa: ANN401 - a function from a path to JSON
    """Return what *get*, a function from a path below ``/ws/v1/cluster`` to a document, finds.

    Args:
        get: Asks.
        share: The resource type that counts hundredths of GPUs.
        brief: Leave out the version and the labels, which cost a question each.
    """
    info = {} if brief else get("info").get("clusterInfo", {})
    labels = {} if brief else get("get-node-labels")
    scheduler = get("scheduler").get("scheduler", {}).get("schedulerInfo", {})
    return View(
        version=str(info.get("resourceManagerVersion", "")),
        nodes=tuple(parse_node(node, share) for node in _list(get("nodes"), "nodes", "node")),
        labels=tuple(str(label["name"]) for label in _list(labels, "nodeLabelInfo") if "name" in label),
        queues=tuple(_queues(scheduler)),
        resource_types=_amounts(scheduler.get("maximumAllocation")),
    )


def cluster_of(view: View, catalogue: Catalogue) -> Cluster:
    """Return the cluster that *view* shows."""
    grouped: dict[str, list[NodeState]] = {}
    for node in view.nodes:
        if node.share or node.gpus:
            grouped.setdefault(node.label, []).append(node)
    bare = sum(_count(node) for node in grouped.pop("", []))
    notes = (f"{bare} GPUs are on nodes without a label, and are not used",) if bare else ()
    names = [queue.name for queue in view.queues]
    return Cluster(
        manager=MANAGER,
        version=view.version,
        pools=tuple(_pool(label, nodes, view.queues, catalogue) for label, nodes in sorted(grouped.items())),
        default_partition=DEFAULT_QUEUE if DEFAULT_QUEUE in names else None,
        notes=notes,
    )


def parse_node(node: Mapping[str, Any], share: str = SHARE) -> NodeState:
    """Return a node from the ResourceManager's JSON."""
    total, free = _amounts(node.get("totalResource")), _amounts(node.get("availableResource"))
    usable = node.get("state") == "RUNNING"
    labels = node.get("nodeLabels") or [""]
    return NodeState(
        name=str(node.get("id", "")),
        label=str(labels[0]),
        usable=usable,
        address=str(node.get("nodeHTTPAddress", "")),
        share=total.get(share, 0),
        free_share=free.get(share, 0) if usable else 0,
        gpus=total.get(WHOLE_GPUS, 0),
        free_gpus=free.get(WHOLE_GPUS, 0) if usable else 0,
    )


def _pool(label: str, nodes: list[NodeState], queues: Iterable[Queue], catalogue: Catalogue) -> GpuPool:
    shared = all(node.share for node in nodes)
    return GpuPool(
        gpu=_found(label, catalogue),
        site_type=label,
        gpu_count=sum(map(_count, nodes)),
        free_gpu_count=sum(node.free_share // WHOLE_GPU if node.share else node.free_gpus for node in nodes),
        mps_per_gpu=WHOLE_GPU if shared else None,
        feature=label,
        partitions=tuple(sorted(queue.name for queue in queues if queue.opens(label))) or ("",),
    )


def _count(node: NodeState) -> int:
    return node.share // WHOLE_GPU if node.share else node.gpus


def _found(name: str, catalogue: Catalogue) -> str | None:
    try:
        return catalogue.find(name).name
    except DeviceError:
        return None


def _queues(queue: Mapping[str, Any]) -> Iterator[Queue]:
    """Yield the leaf queues below *queue*."""
    children = _list(queue, "queues", "queue")
    if not children and queue.get("queueName"):
        closed = {
            str(part.get("partitionName", ""))
            for part in _list(queue, "capacities", "queueCapacitiesByPartition")
            if not part.get("absoluteMaxCapacity", part.get("maxCapacity", 1))
        }
        yield Queue(
            name=str(queue["queueName"]),
            labels=frozenset(map(str, queue.get("nodeLabels") or ())),
            closed=frozenset(closed),
            default_label=str(queue.get("defaultNodeLabelExpression") or ""),
        )
    for child in children:
        yield from _queues(child)


def _amounts(resource: Any) -> dict[str, int]:  # noqa: ANN401 - any JSON
    """Return how much of each resource type a resource vector of the ResourceManager's JSON holds."""
    entries = _list(resource, "resourceInformations", "resourceInformation")
    return {str(entry.get("name")): int(entry.get("value", 0)) for entry in entries}


def _list(document: Any, *path: str) -> list[Any]:  # noqa: ANN401 - any JSON
    """Return the list at *path*; what is missing is empty, and a list of one may come without its brackets."""
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    if document is None:
        return []
    return document if isinstance(document, list) else [document]
