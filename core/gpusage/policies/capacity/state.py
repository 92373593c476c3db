"""The cluster at one moment of a plan: which nodes are active, what runs there until when, and which jobs wait.

Invariants:

1. A node has the type that it was opened as until its last job ends; then it is off, and costs nothing.
2. No more GPUs of a node are used than it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpusage.policies.capacity.problem import NodeGroup, NodeType, Option, PlannedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One job on GPUs of one node, from its start to its end."""

    job: PlannedJob
    node: str
    option: Option
    start_s: float
    end_s: float


@dataclass(slots=True, kw_only=True)
class ActiveNode:
    """A node that is on, of one type."""

    name: str
    group: NodeGroup
    type: NodeType
    opened_s: float
    running: list[Assignment] = field(default_factory=list)

    @property
    def free_count(self) -> int:
        """Return how many of its GPUs nobody uses."""
        return self.type.gpu_count - sum(each.option.gpu_count for each in self.running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A job that waits, with each way to run it.

    Attributes:
        cheapest: The way that costs least.
        fastest: The way that takes least time.
        times_s: The time of each number of GPUs of each name that some node has.
    """

    job: PlannedJob
    options: tuple[Option, ...]
    cheapest: Option
    fastest: Option
    times_s: tuple[tuple[tuple[str, int], float], ...]

    @property
    def latest_start_s(self) -> float:
        """Return when it must have started to meet its deadline in its cheapest way."""
        return self.job.latest_end_s - self.cheapest.time_s


@dataclass(slots=True, kw_only=True)
class State:
    """The cluster at the moment *now_s*.

    Attributes:
        off: Names of the nodes of each group that are off.
    """

    now_s: float
    groups: tuple[NodeGroup, ...]
    waiting: list[Waiting]
    active: list[ActiveNode]
    off: Mapping[str, list[str]]

    @property
    def gpu_count(self) -> int:
        """Return how many GPUs the cluster can have at most."""
        return sum(group.node_count * max(kind.gpu_count for kind in group.types) for group in self.groups)

    def has_room(self) -> bool:
        """Tell whether anything could start now."""
        return any(self.off.values()) or any(node.free_count for node in self.active)

    def closed(self) -> Iterator[tuple[NodeGroup, NodeType]]:
        """Yield each type that a node can be opened as."""
        for group in self.groups:
            if self.off[group.name]:
                yield from ((group, kind) for kind in group.types)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What starts now.

    Attributes:
        starts: The job's place among those that wait, and how it runs.
        opened: How many nodes of a group become active as a type, by the names of both.
    """

    starts: Sequence[tuple[int, Option]]
    opened: Mapping[tuple[str, str], int]
