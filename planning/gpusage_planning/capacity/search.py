"""The whole plan, made better: some jobs are removed and put back where they add least, as long as the cost falls.

It starts from the cheapest of other plans, so that it never costs more. All jobs are known, those too that come later.
Nothing is drawn by chance: equal files give equal plans.

Source: Shaw, "Using Constraint Programming and Local Search Methods to Solve Vehicle Routing Problems", CP 1998.


A whole plan that can be changed is stays of jobs on nodes. Invariants:

1. Jobs that are on a node at the same time use it as one type, and together no more GPUs than that type has.
2. Between two jobs of two types, the node has the time to boot.
3. A node costs what `gpusage_planning.capacity.plan.on_times` says; where it is billed by use, it costs its type's
   price while at least one job runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import combinations, pairwise, permutations
from typing import NamedTuple, TypeAlias

from gpusage_hooks.units import HOUR_S
from gpusage_planning.capacity.plan import Plan, on_times, plan_of
from gpusage_planning.capacity.problem import (
    TOLERANCE_S,
    Assignment,
    NodeGroup,
    Option,
    PlannedJob,
    node_types,
    options,
)


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
        # A lower bound: whatever the node costs and whoever is there, no start of this job is cheaper.
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
    return sum(
        kind.cost(end_s - start_s)
        for kind, start_s, end_s in on_times((each.start_s, each.end_s, each.option.type) for each in own)
    )


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
    # All that overlap are rarely there at once; only if their sum is too large do single moments count.
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


MOST_TRIES = 1_500_000
"""Nodes, ways to run and starts that are tried in all, some microseconds each."""
NODE_SHARES = (1.0, 0.5, 0.0)
"""How much of a place's price is that of the node: with less, a job may open a large node that others will share."""
LEAST_GAIN = 1e-9
"""As a share of the cost; less than that is an inexact sum."""
WAITING_SHARE = 1e-6
"""Of the first plan's cost: the price of all its jobs' waiting."""
PERMUTED = 3
"""So many jobs or fewer are put back in every order."""
NEAREST = (2, 3, 4, 6, 8, 12)
"""How many jobs are removed together."""

Order: TypeAlias = Callable[[int], tuple[float, ...]]


class _Search:
    """The best stays so far."""

    def __init__(self, scheduler: Scheduler, stays: Stays, is_over: Callable[[int], bool]) -> None:
        self.scheduler = scheduler
        self._is_over = is_over
        self.stays = stays
        self.cost = scheduler.cost(stays)
        self.has_improved = False

    @property
    def is_over(self) -> bool:
        """Return whether enough was tried."""
        return self._is_over(self.scheduler.tries)

    def put_back(self, jobs: Sequence[int], node_share: float) -> None:
        """Remove *jobs* and put them back in this order; keep the result where it is cheaper."""
        off = set(jobs)
        stays = [[each for each in own if each.job not in off] for own in self.stays]
        for job in jobs:
            insert(stays, self.scheduler.best_place(job, stays, node_share))
        cost = self.scheduler.cost(stays)
        if cost < self.cost * (1.0 - LEAST_GAIN):
            self.stays, self.cost, self.has_improved = stays, cost, True


def best_plan(
    jobs: Sequence[PlannedJob],
    groups: Sequence[NodeGroup],
    starts: Iterable[Plan],
    most_tries: int = MOST_TRIES,
    is_over: Callable[[int], bool] = lambda _: False,
) -> Plan:
    """Return a plan that costs at most what the cheapest of *starts* costs, the same plan for equal arguments.

    Args:
        jobs: The jobs, by names that differ.
        groups: The nodes.
        starts: Plans of these jobs on these nodes.
        most_tries: When the search ends at the latest.
        is_over: Called with the number of tries; returns whether the search ends earlier.
    """
    cheapest = min(starts, key=lambda each: each.cost)
    waiting_price_per_s = WAITING_SHARE * cheapest.cost / max(sum(each.end_s for each in cheapest.assignments), 1.0)
    scheduler = Scheduler(jobs, groups, waiting_price_per_s)
    search = _Search(scheduler, scheduler.stays(cheapest), lambda tries: tries >= most_tries or is_over(tries))
    orders, before = _orders(jobs, scheduler), float("inf")
    while search.cost < before and not search.is_over:
        before = search.cost
        _round(search, orders)

    better = scheduler.plan(search.stays, cheapest.bound)
    return better if search.has_improved and better.cost <= cheapest.cost else cheapest


def _round(search: _Search, orders: Sequence[Order]) -> None:
    """Try every neighbourhood once, small ones first."""
    for jobs in _neighbourhoods(search):
        for order in _sequences(jobs, orders):
            for node_share in NODE_SHARES:
                if search.is_over:
                    return
                search.put_back(order, node_share)


def _neighbourhoods(search: _Search) -> Iterator[Sequence[int]]:
    """Yield jobs to remove together: those that start near each other, and those of a node or two."""
    count = len(search.scheduler.jobs)
    for wanted in (*(each for each in NEAREST if each < count), *((count,) if count <= NEAREST[-1] else ())):
        for job in range(count if wanted < count else 1):
            starts = {each.job: each.start_s for own in search.stays for each in own}
            yield sorted(starts, key=lambda other: (abs(starts[other] - starts[job]), other))[:wanted]

    for first, second in combinations(range(len(search.stays)), 2):
        both = [each.job for each in (*search.stays[first], *search.stays[second])]
        if 0 < len(both) <= NEAREST[-1]:
            yield both


def _sequences(jobs: Sequence[int], orders: Sequence[Order]) -> Iterator[Sequence[int]]:
    """Yield orders in which *jobs* are put back, each once."""
    if len(jobs) <= PERMUTED:
        yield from permutations(jobs)
        return
    yield from dict.fromkeys(tuple(sorted(jobs, key=order)) for order in orders)


def _orders(jobs: Sequence[PlannedJob], scheduler: Scheduler) -> list[Order]:
    """Return ways to sort jobs: by deadline, arrival, cost of lateness, and work."""
    fastest = [min(option.time_s for option in ways) for ways in scheduler.options]
    work = [min(option.cost for option in ways) for ways in scheduler.options]
    return [
        lambda job: (jobs[job].latest_end_s, jobs[job].submitted_s),
        lambda job: (jobs[job].latest_end_s - fastest[job], jobs[job].submitted_s),
        lambda job: (jobs[job].submitted_s, jobs[job].latest_end_s),
        lambda job: (-jobs[job].late_price_per_hour, jobs[job].latest_end_s),
        lambda job: (-jobs[job].late_price_per_hour / max(work[job], LEAST_GAIN), jobs[job].latest_end_s),
        lambda job: (-work[job], jobs[job].latest_end_s),
        lambda job: (fastest[job], jobs[job].latest_end_s),
    ]
