"""A plan: who runs where and when, which nodes are active meanwhile, and what all that costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpusage_hooks.units import HOUR_S
from gpusage_planning.capacity.problem import NodeGroup as Group
from gpusage_planning.capacity.problem import NodeType, Option, PlannedJob, node_types, options
from gpusage_planning.capacity.state import Assignment

SCHEMA = "gpusage.plan/1"
"""Of a plan as JSON."""


class Occupation(Protocol):
    """A job's time on a node."""

    @property
    def start_s(self) -> float:
        """Return when it starts."""

    @property
    def end_s(self) -> float:
        """Return when it ends."""

    @property
    def option(self) -> Option:
        """Return how it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """A time in which a node was on, of one type; its boot is counted in."""

    node: str
    type: NodeType
    start_s: float
    end_s: float

    @property
    def ready_s(self) -> float:
        """Return when it has booted."""
        return self.start_s + self.type.boot_s

    @property
    def billed_s(self) -> float:
        """Return the time that is billed."""
        return self.type.billed_s(self.end_s - self.start_s)

    @property
    def cost(self) -> float:
        """Return its price."""
        return self.type.cost(self.end_s - self.start_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who runs where and when.

    Attributes:
        active: When each node is on.
        bound: No plan can cost less than this.
    """

    assignments: tuple[Assignment, ...]
    active: tuple[Active, ...]
    bound: float

    @property
    def node_cost(self) -> float:
        """Return the price of the active nodes."""
        return sum(each.cost for each in self.active)

    @property
    def boot_cost(self) -> float:
        """Return the part of the nodes' price that is for booting."""
        return sum(each.type.boot_s / HOUR_S * each.type.price_per_hour for each in self.active)

    @property
    def unused_cost(self) -> float:
        """Return the part of the nodes' price that is for time after they were switched off."""
        return sum(
            (each.billed_s - (each.end_s - each.start_s)) / HOUR_S * each.type.price_per_hour for each in self.active
        )

    @property
    def late_cost(self) -> float:
        """Return the price of all deadlines that are missed."""
        return sum(each.job.late_cost(each.end_s) for each in self.assignments)

    @property
    def cost(self) -> float:
        """Return what the plan costs."""
        return self.node_cost + self.late_cost

    @property
    def gap(self) -> float | None:
        """Return how much less the best plan can cost at most, as a share of this one's cost; ``None`` if unknown."""
        return max(self.cost - self.bound, 0.0) / self.cost if self.bound > 0.0 else None

    @property
    def end_s(self) -> float:
        """Return when the last job ends."""
        return max((each.end_s for each in self.assignments), default=0.0)


def plan_of(assignments: Sequence[Assignment], bound: float) -> Plan:
    """Return the plan with these *assignments*; each node is on as `on_times` has it."""
    by_node: dict[str, list[Assignment]] = {}
    for each in sorted(assignments, key=lambda each: (each.start_s, each.job.name)):
        by_node.setdefault(each.node, []).append(each)
    active = [
        Active(node=node, type=kind, start_s=start_s, end_s=end_s)
        for node, own in by_node.items()
        for kind, start_s, end_s in on_times(own)
    ]
    return Plan(assignments=tuple(assignments), active=tuple(active), bound=bound)


def on_times(own: Sequence[Occupation]) -> Iterator[tuple[NodeType, float, float]]:
    """Yield as what a node is on, from when to when, boots counted in; *own* is in the order of starts.

    Between two jobs it stays on where that is cheaper, or where there is no time to boot it again.
    """
    kind, begin_s, until_s = None, 0.0, 0.0
    for each in own:
        own_kind, start_s, end_s = each.option.type, each.start_s, each.end_s
        if kind is not None and own_kind == kind and _stays_on(kind, begin_s, until_s, start_s, end_s):
            until_s = max(until_s, end_s)
            continue
        if kind is not None:
            yield kind, begin_s, until_s
        kind, begin_s, until_s = own_kind, start_s - own_kind.boot_s, end_s
    if kind is not None:
        yield kind, begin_s, until_s


def _stays_on(kind: NodeType, begin_s: float, until_s: float, start_s: float, end_s: float) -> bool:
    if start_s - until_s <= kind.boot_s:
        return True
    if kind.is_billed_by_use:
        return False
    again = kind.cost(until_s - begin_s) + kind.cost(end_s - start_s + kind.boot_s)
    return kind.cost(max(until_s, end_s) - begin_s) < again


def _end_s(job: PlannedJob, way: Option) -> float:
    """Return when *job* ends at the earliest: a node is off at first."""
    return max(job.submitted_s, way.type.boot_s) + way.time_s


def least_cost(jobs: Sequence[PlannedJob], groups: Sequence[Group]) -> float:
    """Return what no plan can undercut, the higher of two bounds.

    Each job runs at once in its cheapest way, and a node costs what those of its GPUs cost that are used; one node
    boots. Or one job's node costs its whole bill, the others' nothing, and the others are as little late as they can
    be.
    """
    types = node_types(groups)
    ways = [[way for way in options(job, types) if _end_s(job, way) <= way.type.until_s] for job in jobs]
    late = [[job.late_cost(_end_s(job, way)) for way in own] for job, own in zip(jobs, ways, strict=True)]
    shared = sum(
        min(way.cost + cost for way, cost in zip(own, costs, strict=True))
        for own, costs in zip(ways, late, strict=True)
    )
    boot = min((kind.boot_s / HOUR_S * kind.price_per_hour for kind in types), default=0.0) if jobs else 0.0
    least_late = sum(map(min, late))
    alone = (
        min(way.type.cost(way.time_s + way.type.boot_s) + cost for way, cost in zip(own, costs, strict=True))
        - min(costs)
        for own, costs in zip(ways, late, strict=True)
    )
    return max(shared + boot, least_late + max(alone, default=0.0))
