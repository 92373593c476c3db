"""The problem of a plan: jobs with their run times on GPUs, nodes that are paid while they are active, and their state.

Invariants of the state of the cluster at one moment:

1. A node has the type that it was opened as until its last job ends; then it is off.
2. No more GPUs of a node are used than it has.

Source: Jahani, Lattuada, Ciavotta, Ardagna, Amaldi and Zhang, "Optimizing on-demand GPUs in the Cloud for Deep
Learning Applications Training", ICCCS 2019.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from gpusage_hooks.units import HOUR_S

TOLERANCE_S = 1e-6
"""Times that differ by less are equal: sums of times are inexact."""
LONGEST_DAYS = 366
LONGEST_S = LONGEST_DAYS * 24 * HOUR_S
"""Of a job, and of any time in a cluster file: a longer one is in another unit."""
MOST_INTERRUPTIONS = 20.0
"""Between two checkpoints; with more, a job would run more than twenty million times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """What a node may be while it is active.

    Attributes:
        gpu: The GPU's name, as `PlannedJob.times_s` has it.
        price_per_hour: Of the whole node, whether its GPUs are used or not.
        boot_s: From the moment when it is switched on until its first job can start; it is paid.
        minimum_billing_s: It is billed for at least so long each time it is switched on.
        billing_step_s: The time that is billed is a multiple of this; 0 where each second counts.
        until_s: It is gone then, so that every job has to end before; infinity where it stays.
        interruptions_per_hour: How often a spot node is taken away, in the mean.
    """

    name: str
    gpu: str
    gpu_count: int
    price_per_hour: float
    boot_s: float = 0.0
    minimum_billing_s: float = 0.0
    billing_step_s: float = 0.0
    until_s: float = math.inf
    interruptions_per_hour: float = 0.0

    @property
    def pool(self) -> str:
        """Return the name of GPUs on which a job runs as long as on these, and that come back as seldom."""
        return f"{self.gpu} spot {self.interruptions_per_hour:g}" if self.interruptions_per_hour else self.gpu

    def expected_s(self, time_s: float, checkpoint_s: float) -> float:
        """Return how long a job of *time_s* runs in the mean where it is interrupted, infinity where it hardly ends.

        Interruptions come at any moment with the same chance. Each costs the work since the last checkpoint, of which
        there is one after each *checkpoint_s* of work, and the boot of another node.

        Source:
            Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22, 2006.
        """
        if not self.interruptions_per_hour:
            return time_s
        per_s = self.interruptions_per_hour / HOUR_S
        piece_s = min(checkpoint_s, time_s)
        if per_s * piece_s > MOST_INTERRUPTIONS:
            return math.inf
        return time_s / piece_s * math.expm1(per_s * piece_s) * (1.0 / per_s + self.boot_s)

    @property
    def gpu_price_per_s(self) -> float:
        """Return what one of its GPUs costs for a second."""
        return self.price_per_hour / self.gpu_count / HOUR_S

    @property
    def is_billed_by_use(self) -> bool:
        """Return whether nothing is billed but the time in which its jobs run."""
        return not (self.boot_s or self.minimum_billing_s or self.billing_step_s)

    def billed_s(self, on_s: float) -> float:
        """Return the time that is billed where it was on for *on_s*, from the moment when it was switched on."""
        billed_s = max(on_s, self.minimum_billing_s)
        if not self.billing_step_s:
            return billed_s
        return math.ceil((billed_s - TOLERANCE_S) / self.billing_step_s) * self.billing_step_s

    def cost(self, on_s: float) -> float:
        """Return the price of being on once, for *on_s*."""
        return self.billed_s(on_s) / HOUR_S * self.price_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes that are alike: each can be active as any of the *types*, or be off.

    Attributes:
        names: Of the nodes, as many as there are; without any, they are the group's name with a number.
    """

    name: str
    node_count: int
    types: tuple[NodeType, ...]
    names: tuple[str, ...] = ()

    @property
    def node_names(self) -> tuple[str, ...]:
        """Return the nodes' names."""
        return self.names or tuple(f"{self.name}-{number}" for number in range(1, self.node_count + 1))


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A job to be planned.

    Attributes:
        times_s: The whole run time by GPU and number of GPUs, which is a power of two.
        deadline_s: When it should have ended, on the same clock as ``submitted_s``.
        late_price_per_hour: What an hour after the deadline costs.
        priority: For rules that look at it: higher goes first.
        checkpoint_s: It saves its work after each so much of it; infinity where it does not.
    """

    name: str
    times_s: Mapping[tuple[str, int], float]
    submitted_s: float = 0.0
    deadline_s: float | None = None
    late_price_per_hour: float = 0.0
    priority: float = 0.0
    checkpoint_s: float = math.inf

    def late_cost(self, end_s: float) -> float:
        """Return what it costs that the job ends at *end_s*."""
        if self.deadline_s is None:
            return 0.0
        return max(end_s - self.deadline_s, 0.0) / HOUR_S * self.late_price_per_hour

    @cached_property
    def latest_end_s(self) -> float:
        """Return the deadline, infinity where there is none."""
        return float("inf") if self.deadline_s is None else self.deadline_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to run a job: GPUs of one node, and what they cost where others pay for the node's other GPUs."""

    type: NodeType
    gpu_count: int
    time_s: float

    @property
    def cost(self) -> float:
        """Return the price of the GPUs for as long as the job runs."""
        return self.gpu_count * self.type.gpu_price_per_s * self.time_s


def node_types(groups: Iterable[NodeGroup]) -> tuple[NodeType, ...]:
    """Return every type that a node may be, each once."""
    return tuple(dict.fromkeys(kind for group in groups for kind in group.types))


def stays(option: Option) -> bool:
    """Return whether a job can wait for this way to run as long as it must."""
    return option.type.until_s == math.inf


def options(job: PlannedJob, types: Iterable[NodeType]) -> tuple[Option, ...]:
    """Return each way to run *job* on one node of these *types*."""
    return tuple(
        Option(type=kind, gpu_count=gpu_count, time_s=expected_s)
        for kind in types
        for (gpu, gpu_count), time_s in job.times_s.items()
        if gpu == kind.gpu
        and gpu_count <= kind.gpu_count
        and (expected_s := kind.expected_s(time_s, job.checkpoint_s)) <= max(time_s, LONGEST_S)
    )


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
