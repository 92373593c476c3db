"""The queues of a cluster by their full paths: which node labels each reaches, and what masters may take of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpusage_hooks.errors import RequestError
from gpusage_yarn.documents import amounts, as_list

MASTER_MIB = 512
"""What our application master takes, with one vcore."""
DEFAULT = "default"
"""Where an application goes that names no queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One leaf queue.

    Attributes:
        path: From the root, for example ``root.research.vision``.
        labels: Those that it may use; ``*`` stands for all.
        closed: Those of which it has no capacity; ``""`` stands for nodes without a label.
        capacity: Of each label, the percentage of the cluster's that it is sure of.
        masters: Of each label, the percentage of its own part that application masters may take.
        crowded: Labels where no further master starts before another ends.
    """

    path: str
    labels: frozenset[str]
    closed: frozenset[str] = frozenset()
    default_label: str = ""
    capacity: Mapping[str, float] = field(default_factory=dict)
    masters: Mapping[str, float] = field(default_factory=dict)
    crowded: frozenset[str] = frozenset()

    @property
    def leaf(self) -> str:
        """The last part of its path, by which it can be named where no other queue has the same."""
        return self.path.rpartition(".")[2]

    def opens(self, label: str) -> bool:
        """Tell whether an application in this queue gets containers on nodes with *label*, ``""`` for none."""
        return (not label or "*" in self.labels or label in self.labels) and label not in self.closed


def parse_queues(root: Mapping[str, Any], above: str = "") -> tuple[Queue, ...]:
    """Return the leaf queues at and below *root*, as the ResourceManager's JSON has them."""
    path = f"{above}.{root.get('queueName', '')}".lstrip(".")
    children = as_list(root, "queues", "queue")
    if children:
        return tuple(queue for child in children for queue in parse_queues(child, path))
    return (_leaf(root, path),) if root.get("queueName") and root.get("queueType", "leaf") != "parent" else ()


def makes_queues(root: Mapping[str, Any]) -> bool:
    """Tell whether YARN makes queues of itself somewhere at or below *root*, when they are first named."""
    eligible = str(root.get("autoCreationEligibility") or "off") != "off"
    return eligible or any(makes_queues(child) for child in as_list(root, "queues", "queue"))


def find_queue(queues: Iterable[Queue], name: str) -> Queue | None:
    """Return the queue that YARN understands by *name*, a path or a leaf's name; ``None`` where there is none.

    Without a name it is the default queue, as far as that can be told: a site's rules may choose another.

    Raises:
        RequestError: Several leaf queues have this name.
    """
    if not name:
        defaults = [queue for queue in queues if queue.leaf == DEFAULT]
        return defaults[0] if len(defaults) == 1 else None
    named = [queue for queue in queues if name in (queue.path, queue.leaf)]
    exact = [queue for queue in named if queue.path == name] or named
    if len(exact) > 1:
        paths = ", ".join(queue.path for queue in exact)
        message = f"Queue {name!r} must be one queue; it is the last name of {paths}. Write the whole path."
        raise RequestError(message)
    return exact[0] if exact else None


def spellings(queues: Iterable[Queue]) -> Iterator[tuple[Queue, tuple[str, ...]]]:
    """Yield each queue with the names by which YARN knows it."""
    known = tuple(queues)
    leaves = [queue.leaf for queue in known]
    for queue in known:
        yield queue, (queue.path, queue.leaf) if leaves.count(queue.leaf) == 1 else (queue.path,)


def _leaf(queue: Mapping[str, Any], path: str) -> Queue:
    parts = {
        str(part.get("partitionName") or ""): part
        for part in as_list(queue, "capacities", "queueCapacitiesByPartition")
    }
    return Queue(
        path=path,
        labels=frozenset(map(str, queue.get("nodeLabels") or ())),
        closed=frozenset(
            label for label, part in parts.items() if not part.get("absoluteMaxCapacity", part.get("maxCapacity", 1))
        ),
        default_label=str(queue.get("defaultNodeLabelExpression") or ""),
        capacity={label: float(part.get("absoluteCapacity", 0)) for label, part in parts.items()},
        masters={
            label: float(part["maxAMLimitPercentage"])
            for label, part in parts.items()
            if "maxAMLimitPercentage" in part
        },
        crowded=frozenset(
            str(part.get("partitionName") or "")
            for part in as_list(queue, "resources", "resourceUsagesByPartition")
            if _is_crowded(amounts(part.get("amLimit")), amounts(part.get("amUsed")))
        ),
    )


def _is_crowded(limit: Mapping[str, int], used: Mapping[str, int]) -> bool:
    """Tell whether one more master is too much; YARN lets the first one in whatever the limit."""
    master = {"memory-mb": MASTER_MIB, "vcores": 1}
    return any(used.get(name, 0) and used[name] + more > limit.get(name, 0) for name, more in master.items())
