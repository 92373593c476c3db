"""The queues of a cluster by their full paths: the node labels that each reaches, and the limits on masters there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpusage_hooks.errors import RequestError
from gpusage_yarn.cluster.documents import as_list, resource_amounts
from gpusage_yarn.share_plan import SHARE, WHOLE_GPU

MASTER_MIB = 512
"""What our application master takes, with one vcore."""
DEFAULT = "default"
"""Where an application goes that names no queue."""
GPUS = "yarn.io/gpu"
_SHORT = {"memory-mb": "memory", "vcores": "vcores"}  # as YARN wants them in a queue's capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A leaf queue.

    Attributes:
        path: From the root, for example ``root.research.vision``.
        labels: Those that it may use; ``*`` stands for all.
        closed: Those of which it has no capacity; ``""`` stands for nodes without a label.
        capacity: Of each label, the percentage of the cluster's that it is sure of.
        masters: Of each label, the percentage of its own part that application masters may take.
        am_limit_reached: Labels where no further master starts before another ends.
        missing: Of each label in which it has absolute resources, shares not among them, the lines to write.
        largest: What one container may have, by the queue's maximum allocation.
    """

    path: str
    labels: frozenset[str]
    closed: frozenset[str] = frozenset()
    capacity: Mapping[str, float] = field(default_factory=dict)
    masters: Mapping[str, float] = field(default_factory=dict)
    am_limit_reached: frozenset[str] = frozenset()
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)

    @property
    def leaf(self) -> str:
        """The last part of its path, by which it can be named where no other queue has the same."""
        return self.path.rpartition(".")[2]

    def is_accessible(self, label: str) -> bool:
        """Return whether an application in this queue gets containers on nodes with *label*, ``""`` for none."""
        return (not label or "*" in self.labels or label in self.labels) and label not in self.closed

    def has_shares(self, label: str) -> bool:
        """Return whether a container with a share could ever start on nodes with *label*."""
        return self.is_accessible(label) and label not in self.missing


def parse_queues(
    root: Mapping[str, Any], above: str = "", *, share: str = SHARE, gpu_type: str = ""
) -> tuple[Queue, ...]:
    """Return the leaf queues at and below *root*, as the ResourceManager's JSON has them.

    Args:
        root: A queue.
        above: The path of the queue that it is in.
        share: The resource type that counts hundredths of GPUs.
        gpu_type: What stands for the label of nodes without one; ``""`` for nothing.
    """
    path = f"{above}.{root.get('queueName', '')}".lstrip(".")

    # A parent queue takes no application, also one that has no child yet.
    children = as_list(root, "queues", "queue")
    if children:
        return tuple(queue for child in children for queue in parse_queues(child, path, share=share, gpu_type=gpu_type))
    is_leaf = root.get("queueName") and root.get("queueType", "leaf") != "parent"
    return (_leaf(root, path, share, gpu_type),) if is_leaf else ()


def creates_queues(root: Mapping[str, Any]) -> bool:
    """Return whether YARN makes queues of itself somewhere at or below *root*, when they are first named."""
    # A parent that may create queues makes any name below it a queue.
    eligible = str(root.get("autoCreationEligibility") or "off") != "off"
    return eligible or any(creates_queues(child) for child in as_list(root, "queues", "queue"))


def find_queue(queues: Iterable[Queue], name: str) -> Queue | None:
    """Return the queue that YARN understands by *name*, a path or a leaf's name; ``None`` where there is none.

    Without a name it is the default queue, although a site's placement rules may choose another.

    Raises:
        RequestError: Several leaf queues have this name.
    """
    if not name:
        defaults = [queue for queue in queues if queue.leaf == DEFAULT]
        return defaults[0] if len(defaults) == 1 else None

    # A whole path comes before the last name of another.
    named = [queue for queue in queues if name in (queue.path, queue.leaf)]
    exact = [queue for queue in named if queue.path == name] or named
    if len(exact) > 1:
        paths = ", ".join(queue.path for queue in exact)
        message = f"Queue {name!r} must be one queue; it is the last name of {paths}. Write the whole path."
        raise RequestError(message)
    return exact[0] if exact else None


def queue_names(queues: Iterable[Queue]) -> Iterator[tuple[Queue, tuple[str, ...]]]:
    """Yield each queue with the names by which YARN knows it."""
    known = tuple(queues)
    leaves = [queue.leaf for queue in known]
    for queue in known:
        yield queue, (queue.path, queue.leaf) if leaves.count(queue.leaf) == 1 else (queue.path,)


def _leaf(queue: Mapping[str, Any], path: str, share: str, gpu_type: str) -> Queue:
    parts = {
        str(part.get("partitionName") or ""): part
        for part in as_list(queue, "capacities", "queueCapacitiesByPartition")
    }
    missing = {label: lines for label, part in parts.items() if (lines := tuple(_missing(path, label, part, share)))}
    parts |= {gpu_type: parts[""]} if "" in parts else {}
    closed = {label for label, part in parts.items() if not part.get("absoluteMaxCapacity", part.get("maxCapacity", 1))}

    # YARN lets the first master in whatever the limit, so only one more is too much.
    master, am_limit_reached = {"memory-mb": MASTER_MIB, "vcores": 1}, set()
    for part in as_list(queue, "resources", "resourceUsagesByPartition"):
        limit, used = resource_amounts(part.get("amLimit")), resource_amounts(part.get("amUsed"))
        if any(used.get(name, 0) and used[name] + more > limit.get(name, 0) for name, more in master.items()):
            am_limit_reached |= {label := str(part.get("partitionName") or ""), label or gpu_type}

    limits = {label: part["maxAMLimitPercentage"] for label, part in parts.items() if "maxAMLimitPercentage" in part}
    return Queue(
        path=path,
        labels=frozenset([*map(str, queue.get("nodeLabels") or ()), gpu_type]) - {""},
        closed=frozenset(closed),
        capacity={label: float(part.get("absoluteCapacity", 0)) for label, part in parts.items()},
        largest=resource_amounts(queue.get("maximumAllocation")),
        masters={label: float(percent) for label, percent in limits.items()},
        am_limit_reached=frozenset(am_limit_reached),
        missing=missing | ({gpu_type: missing[""]} if "" in missing else {}),
    )


def _missing(path: str, label: str, part: Mapping[str, Any], share: str) -> Iterator[str]:
    """Yield the lines that give a queue shares in *label*, where its resources there are absolute and name none."""
    if resource_amounts(part.get("effectiveMaxResource")).get(share):
        return
    nodes_with_label = f".accessible-node-labels.{label}" if label else ""
    for key, setting in (("configuredMinResource", "capacity"), ("configuredMaxResource", "maximum-capacity")):
        vector = resource_amounts(part.get(key))
        if not vector.get("memory-mb") or vector.get(share):  # it is all 0 where the queue has percentages
            continue

        # Where the queue names no GPUs, its admin must know how many it has.
        gpus = vector.get(GPUS, 0)
        resources = {**vector, share: str(WHOLE_GPU * gpus) if gpus else "N"}
        shown = ",".join(
            f"{_SHORT.get(name, name)}={amount}" for name, amount in resources.items() if amount or name in _SHORT
        )
        yield f"yarn.scheduler.capacity.{path}{nodes_with_label}.{setting}=[{shown}]"
