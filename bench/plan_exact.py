"""The least cost of a small plan, proven by OR-Tools' CP-SAT: what `gpusage plan` is compared with.

Each node has as many stretches of time as there are jobs, one after the other. A stretch has a type and is billed from
its begin to its end, and for the boot before; a job runs inside one stretch of its node. Times are whole seconds,
prices whole cents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ortools.sat.python import cp_model  # type: ignore[import-not-found, import-untyped, unused-ignore]

from gpusage_hooks.units import HOUR_S
from gpusage_planning.capacity.problem import NodeGroup, NodeType, PlannedJob, node_types, options

CENTS = 100
WORKERS = 2
Expression = Any
"""CP-SAT's expressions, which have no common type."""


class Job(NamedTuple):
    """A job's variables; *places* are true where it runs on a node in one way."""

    job: PlannedJob
    start: Expression
    end: Expression
    places: list[Expression]


class Stretch(NamedTuple):
    """A time in which a node is on, by type whether it has that type and for how long."""

    begin: Expression
    end: Expression
    is_type: Mapping[NodeType, Expression]
    time: Mapping[NodeType, Expression]


class Model:
    """The whole plan as one constraint program."""

    def __init__(self, jobs: Sequence[PlannedJob], groups: Sequence[NodeGroup], most: float) -> None:
        self.model = cp_model.CpModel()
        types = node_types(groups)
        longest = [max(way.time_s + way.type.boot_s for way in options(job, types)) for job in jobs]
        billing_s = max(max(kind.minimum_billing_s, kind.billing_step_s) for kind in types)
        self.horizon_s = int(max(job.submitted_s for job in jobs) + sum(longest) + billing_s)
        self.costs: list[Expression] = []
        self.jobs = [self._job(job) for job in jobs]
        for group in groups:
            for number in range(group.node_count):
                self._add_node(group, number)
        for each in self.jobs:
            self.model.add_exactly_one(each.places)
        cost = sum(self.costs)
        self.model.add(cost <= round(most * CENTS * HOUR_S) + 1)
        self.model.minimize(cost)

    def _time(self, earliest_s: float = 0.0) -> Expression:
        return self.model.new_int_var(int(earliest_s), self.horizon_s, "")

    def _job(self, job: PlannedJob) -> Job:
        start, end = self._time(job.submitted_s), self._time(job.submitted_s)
        if job.deadline_s is not None:
            late = self._time()
            self.model.add(late >= end - int(job.deadline_s))
            self.costs.append(late * round(job.late_price_per_hour * CENTS))
        return Job(job, start, end, [])

    def _add_node(self, group: NodeGroup, number: int) -> None:
        """Add a node; of nodes that are alike, the one with number n has no job before job n, so that none is first."""
        stretches = list(self._stretches(group))
        for kind in group.types:
            demands = []
            for each in self.jobs[number:]:
                for way in options(each.job, [kind]):
                    is_here = self.model.new_bool_var("")
                    stay = self.model.new_optional_interval_var(each.start, int(way.time_s), each.end, is_here, "")
                    demands.append((stay, way.gpu_count, is_here * int(way.gpu_count * way.time_s)))
                    each.places.append(is_here)
                    self.model.add(sum(self._inside(each, kind, stretches)) == 1).only_enforce_if(is_here)
            if demands:
                stays, counts, work = zip(*demands, strict=True)
                self.model.add_cumulative(stays, counts, kind.gpu_count)
                self.model.add(sum(each.time[kind] for each in stretches) * kind.gpu_count >= sum(work))

    def _stretches(self, group: NodeGroup) -> Iterator[Stretch]:
        before: Expression = 0
        for _ in self.jobs:
            begin, end = self._time(), self._time()
            is_type = {kind: self.model.new_bool_var("") for kind in group.types}
            time = {kind: self._time() for kind in group.types}
            self.model.add_at_most_one(is_type.values())
            self.model.add(begin >= before)
            self.model.add(end >= begin)
            for kind, is_this in is_type.items():
                self.model.add(begin >= before + int(kind.boot_s)).only_enforce_if(is_this)
                self._add_bill(kind, is_this, time[kind], end - begin)
            yield Stretch(begin, end, is_type, time)
            before = end

    def _add_bill(self, kind: NodeType, is_this: Expression, billed: Expression, work: Expression) -> None:
        """Let *billed* be the time that is billed for *work*, the time in which jobs may run, and count its price."""
        self.model.add(billed >= work + int(kind.boot_s)).only_enforce_if(is_this)
        self.model.add(billed >= int(kind.minimum_billing_s)).only_enforce_if(is_this)
        if kind.billing_step_s:
            self.model.add_modulo_equality(0, billed, int(kind.billing_step_s))
        self.costs.append(billed * round(kind.price_per_hour * CENTS))

    def _inside(self, job: Job, kind: NodeType, stretches: Sequence[Stretch]) -> Iterator[Expression]:
        """Yield for each of *stretches* whether *job* runs in it, while it has the type *kind*."""
        for each in stretches:
            is_inside = self.model.new_bool_var("")
            self.model.add_implication(is_inside, each.is_type[kind])
            self.model.add(job.start >= each.begin).only_enforce_if(is_inside)
            self.model.add(job.end <= each.end).only_enforce_if(is_inside)
            yield is_inside


def least_cost(
    jobs: Sequence[PlannedJob], groups: Sequence[NodeGroup], most: float, limit_s: float
) -> tuple[float, bool]:
    """Return a cost that no plan can undercut, and whether it is that of the best plan.

    Args:
        jobs: The jobs.
        groups: The nodes.
        most: What a plan costs that is known; the model has none that costs more.
        limit_s: Seconds in which the best plan must be proven, else the bound is less.
    """
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = WORKERS
    is_proven = solver.solve(Model(jobs, groups, most).model) == cp_model.OPTIMAL
    return solver.best_objective_bound / CENTS / HOUR_S, is_proven
