"""The cluster at one moment of a plan: which nodes are active, what runs there until when, and which jobs wait.

Invariants:

1. A node has the type that it was opened as until its last job ends; then it is off.
2. No more GPUs of a node are used than it has.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpusage_planning.capacity.problem import NodeGroup, NodeType, Option, PlannedJob


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
    """A node that is on, of one type.

    Attributes:
        ready_s: When it has booted.
        free_count: How many of its GPUs nobody uses.
    """

    name: str
    group: NodeGroup
    type: NodeType
    ready_s: float
    running: list[Assignment]
    free_count: int

    def start(self, assignment: Assignment) -> None:
        """Give *assignment* its GPUs."""
        self.running.append(assignment)
        self.free_count -= assignment.option.gpu_count

    def end(self, assignment: Assignment) -> None:
        """Free the GPUs of *assignment*."""
        self.running.remove(assignment)
        self.free_count += assignment.option.gpu_count


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


Order: TypeAlias = Callable[[Waiting], tuple[float, ...]]
"""The key by which waiting jobs are sorted."""


def _by_arrival(each: Waiting) -> tuple[float, ...]:
    return (each.job.submitted_s,)


@dataclass(slots=True, kw_only=True)
class State:
    """The cluster at the moment *now_s*.

    Attributes:
        waiting: The jobs that wait, in the *order* that was asked for last.
        off: Names of the nodes of each group that are off.
    """

    now_s: float
    groups: tuple[NodeGroup, ...]
    waiting: list[Waiting]
    active: list[ActiveNode]
    off: Mapping[str, list[str]]
    order: Order = _by_arrival

    def admit(self, each: Waiting) -> None:
        """Let a job wait."""
        insort(self.waiting, each, key=self.order)

    def remove(self, each: Waiting) -> None:
        """Let a job wait no longer."""
        place = bisect_left(self.waiting, self.order(each), key=self.order)
        while self.waiting[place] is not each:
            place += 1
        del self.waiting[place]

    def in_order(self, order: Order) -> Sequence[Waiting]:
        """Return the jobs that wait, sorted; equal ones by the order before."""
        if order is not self.order:
            self.waiting.sort(key=order)
            self.order = order
        return self.waiting

    @property
    def gpu_count(self) -> int:
        """Return how many GPUs the cluster can have at most."""
        return sum(group.node_count * max(kind.gpu_count for kind in group.types) for group in self.groups)

    def has_room(self) -> bool:
        """Return whether anything could start now."""
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
        starts: Jobs, and how they run.
        opened: How many nodes of a group, by its name, become active as a type.
    """

    starts: Sequence[tuple[Waiting, Option]]
    opened: Mapping[tuple[str, NodeType], int]
