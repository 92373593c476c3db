"""A whole plan that can be changed: stays of jobs on nodes, each put where it adds least to the cost.

Invariants:

1. Jobs that are on a node at the same time use it as one type, and together no more GPUs than that type has.
2. Between two jobs of two types, the node has the time to boot.
3. A node costs what `gpusage_planning.capacity.plan.on_times` says; where it is billed by use, it costs its type's
   price while at least one job runs there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from gpusage_hooks.units import HOUR_S
from gpusage_planning.capacity.plan import Plan, on_times, plan_of
from gpusage_planning.capacity.problem import TOLERANCE_S, NodeGroup, Option, PlannedJob, node_types, options
from gpusage_planning.capacity.state import Assignment


class Stay(NamedTuple):
    """A job's time on a node; *job* is its number."""

    start_s: float
    end_s: float
    job: int
    option: Option


Stays: TypeAlias = list[list[Stay]]
"""Those of each node, in the order of their starts."""


class Place(NamedTuple):
    """Where a job can be put, and what that adds to the cost."""

    cost: float
    node: int
    stay: Stay


class Scheduler:
    """The jobs, by names that differ, and nodes of one plan.

    Attributes:
        boots_s: Of each node the times that its types need to boot; ``None`` where it is billed by use.
        waiting_price_per_s: What a job costs until it ends, so that of equal plans the earlier one counts as better.
        tries: How many places have been tried.
    """

    def __init__(self, jobs: Sequence[PlannedJob], groups: Sequence[NodeGroup], waiting_price_per_s: float) -> None:
        self.jobs = jobs
        self.groups = groups
        self.nodes = [(name, group) for group in groups for name in group.node_names]
        self.boots_s = [_boots_s(group) for _, group in self.nodes]
        self.options = [options(job, node_types(groups)) for job in jobs]
        self.waiting_price_per_s = waiting_price_per_s
        self.tries = 0

    def stays(self, plan: Plan) -> Stays:
        """Return *plan* as stays."""
        places = {name: place for place, (name, _) in enumerate(self.nodes)}
        numbers = {job.name: number for number, job in enumerate(self.jobs)}
        result: Stays = [[] for _ in self.nodes]
        for each in plan.assignments:
            stay = Stay(each.start_s, each.end_s, numbers[each.job.name], each.option)
            result[places[each.node]].append(stay)
        return [sorted(own, key=_start_s) for own in result]

    def plan(self, stays: Stays, bound: float) -> Plan:
        """Return *stays* as a plan that has this *bound*."""
        assignments = [
            Assignment(job=self.jobs[job], node=name, option=option, start_s=start_s, end_s=end_s)
            for (name, _), own in zip(self.nodes, stays, strict=True)
            for start_s, end_s, job, option in own
        ]
        return plan_of(sorted(assignments, key=lambda each: (each.start_s, each.job.name)), bound)

    def cost(self, stays: Stays) -> float:
        """Return what *stays* cost, with the price of waiting."""
        return sum(
            _node_cost(own)
            + sum(self.jobs[each.job].late_cost(each.end_s) + self.waiting_price_per_s * each.end_s for each in own)
            for own in stays
        )

    def best_place(self, job: int, stays: Stays, node_share: float) -> Place:
        """Return where *job* adds least to *stays*.

        Args:
            job: Its number.
            stays: The other jobs.
            node_share: 0 to 1, the part of the price that counts for the node's time; the rest counts for the job's
                own GPUs, as if others came to use the node's other GPUs.
        """
        best = Place(float("inf"), 0, Stay(0.0, 0.0, job, self.options[job][0]))
        untouched: set[str] = set()
        for node, (_, group) in enumerate(self.nodes):
            if not stays[node] and group.name in untouched:
                continue  # equal to a node that was tried
            if not stays[node]:
                untouched.add(group.name)
            for option in self.options[job]:
                if option.type in group.types:
                    best = self._best_start(best, option, node, stays[node], node_share)
        return best

    def _best_start(self, best: Place, option: Option, node: int, others: Sequence[Stay], node_share: float) -> Place:
        """Return *best*, or the start of its job on this node that adds less."""
        job = self.jobs[best.stay.job]
        self.tries += 1
        gpu_cost = (1.0 - node_share) * option.cost
        if gpu_cost + job.late_cost(max(job.submitted_s, option.type.boot_s) + option.time_s) >= best.cost:
            return best
        for start_s, end_s in _times(job, option, others, self.boots_s[node]):
            self.tries += 1
            cost = gpu_cost + job.late_cost(end_s) + self.waiting_price_per_s * end_s
            if cost >= best.cost:
                continue
            stay = Stay(start_s, end_s, best.stay.job, option)
            added = self._added_cost(stay, node, others)
            if added is not None and cost + node_share * added < best.cost:
                best = Place(cost + node_share * added, node, stay)
        return best

    def _added_cost(self, stay: Stay, node: int, others: Sequence[Stay]) -> float | None:
        """Return what the node costs more with *stay* than with the *others* alone; ``None`` where it has no room."""
        paid_s = _paid_s(others, stay)
        if paid_s is None:
            return None
        if self.boots_s[node] is None:
            return (stay.end_s - stay.start_s - paid_s) / HOUR_S * stay.option.type.price_per_hour
        together = sorted((*others, stay), key=_start_s)
        return _node_cost(together) - _node_cost(others) if _can_boot(together) else None


def insert(stays: Stays, place: Place) -> None:
    """Put the job of *place* there."""
    own = stays[place.node]
    own.append(place.stay)
    own.sort(key=_start_s)


def _boots_s(group: NodeGroup) -> Collection[float] | None:
    if all(kind.is_billed_by_use for kind in group.types):
        return None
    return {kind.boot_s for kind in group.types if kind.boot_s}


def _start_s(stay: Stay) -> float:
    return stay.start_s


def _times(
    job: PlannedJob, option: Option, others: Sequence[Stay], boots_s: Collection[float] | None
) -> set[tuple[float, float]]:
    """Return the starts and ends that can be best: at once, in time for the deadline, or where another begins or ends.

    The cost changes its slope nowhere else where a node is billed by use. Else it may also be best to leave just the
    time to boot between this job and another one.
    """
    time_s = option.time_s
    earliest_s = max(job.submitted_s, option.type.boot_s)
    times = {(earliest_s, earliest_s + time_s)}
    ends = {edge for each in others for edge in each[:2]}
    if job.deadline_s is not None:
        times.add((job.deadline_s - time_s, job.deadline_s))
    times.update((edge, edge + time_s) for edge in ends)
    times.update((edge - time_s, edge) for edge in ends)
    for boot_s in boots_s or ():
        times.update((edge + boot_s, edge + boot_s + time_s) for edge in ends)
        times.update((edge - boot_s - time_s, edge - boot_s) for edge in ends)
    return {each for each in times if each[0] >= earliest_s and each[1] <= option.type.until_s}


def _node_cost(own: Sequence[Stay]) -> float:
    return sum(kind.cost(end_s - start_s) for kind, start_s, end_s in on_times(own))


def _can_boot(own: Sequence[Stay]) -> bool:
    """Return whether a node has the time to become another type where its jobs need that."""
    until_s = 0.0
    for before, after in pairwise(own):
        until_s = max(until_s, before.end_s)
        kind = after.option.type
        if kind != before.option.type and after.start_s - until_s < kind.boot_s - TOLERANCE_S:
            return False
    return True


def _paid_s(others: Sequence[Stay], stay: Stay) -> float | None:
    """Return how long the node is on anyway while *stay* lasts; ``None`` where it has no room."""
    start_s, end_s, _, option = stay
    first_s, last_s = start_s + TOLERANCE_S, end_s - TOLERANCE_S
    overlapping = [each for each in others if each.start_s < last_s and each.end_s > first_s]
    if any(each.option.type != option.type for each in overlapping):
        return None
    room = option.type.gpu_count - option.gpu_count
    if sum(each.option.gpu_count for each in overlapping) > room:
        for moment_s in (first_s, *(max(each.start_s + TOLERANCE_S, first_s) for each in overlapping)):
            if sum(each.option.gpu_count for each in overlapping if each.start_s <= moment_s < each.end_s) > room:
                return None
    paid_s, reach_s = 0.0, start_s
    for each in overlapping:
        reach_s = max(reach_s, each.start_s)
        until_s = min(each.end_s, end_s)
        if until_s > reach_s:
            paid_s += until_s - reach_s
            reach_s = until_s
    return paid_s
