"""The whole plan, made better: some jobs are removed and put back where they add least, as long as the cost falls.

It starts from the cheapest of other plans, so that it never costs more. All jobs are known, those too that come later.
Nothing is drawn by chance: equal files give equal plans.

Source: Shaw, "Using Constraint Programming and Local Search Methods to Solve Vehicle Routing Problems", CP 1998.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, permutations
from typing import TypeAlias

from gpusage_planning.capacity.plan import Plan
from gpusage_planning.capacity.problem import NodeGroup, PlannedJob
from gpusage_planning.capacity.schedule import Scheduler, Stays, insert

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
