"""A plan: who runs where and when, which nodes are active meanwhile, and what all that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpusage.policies.capacity.problem import NodeGroup as Group
from gpusage.policies.capacity.problem import NodeType, PlannedJob, node_types, options
from gpusage.policies.capacity.state import Assignment
from gpusage_hooks.units import HOUR_S

SCHEMA = "gpusage.plan/1"
"""Of a plan as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """A time in which a node was on, of one type."""

    node: str
    type: NodeType
    start_s: float
    end_s: float

    @property
    def cost(self) -> float:
        """Return its price."""
        return (self.end_s - self.start_s) / HOUR_S * self.type.price_per_hour


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


def least_cost(jobs: Sequence[PlannedJob], groups: Sequence[Group]) -> float:
    """Return what no plan can undercut, the higher of two bounds.

    Each job runs at once in its cheapest way, and a node costs what those of its GPUs cost that are used. Or one job's
    node costs its whole price, the others' nothing, and the others are as little late as they can be.
    """
    types = node_types(groups)
    ways = [options(job, types) for job in jobs]
    late = [[job.late_cost(job.submitted_s + way.time_s) for way in own] for job, own in zip(jobs, ways, strict=True)]
    shared = sum(
        min(way.cost + cost for way, cost in zip(own, costs, strict=True))
        for own, costs in zip(ways, late, strict=True)
    )
    least_late = sum(map(min, late))
    alone = (
        min(way.time_s / HOUR_S * way.type.price_per_hour + cost for way, cost in zip(own, costs, strict=True))
        - min(costs)
        for own, costs in zip(ways, late, strict=True)
    )
    return max(shared, least_late + max(alone, default=0.0))
