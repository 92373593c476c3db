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
        gap: Of the decisions that the plan consists of, the largest; ``None`` where a rule without a bound decided.
        bound: No plan can cost less than this: as if each job had its best way to run at once, and paid its GPUs only.
    """

    assignments: tuple[Assignment, ...]
    active: tuple[Active, ...]
    gap: float | None
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
    def above_bound(self) -> float:
        """Return how far the cost lies above the bound, as a share of the cost."""
        return max(self.cost - self.bound, 0.0) / self.cost if self.cost else 0.0

    @property
    def end_s(self) -> float:
        """Return when the last job ends."""
        return max((each.end_s for each in self.assignments), default=0.0)


def least_cost(jobs: Sequence[PlannedJob], groups: Sequence[Group]) -> float:
    """Return what no plan can undercut: a node costs at least what those of its GPUs cost that are used."""
    types = node_types(groups)
    return sum(
        min(option.cost + job.late_cost(job.submitted_s + option.time_s) for option in options(job, types))
        for job in jobs
    )
