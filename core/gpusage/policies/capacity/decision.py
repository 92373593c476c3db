"""What starts now: one mixed-integer program at each event.

For each job that waits, either one way to run it starts now, or the job waits on. What waiting will cost it is
estimated: its best way, after the time that the jobs before it keep the whole cluster busy, and a turn of GPUs.

Invariants:

1. What starts fits: for each size 1, 2, 4... the jobs that need as many GPUs or more find that many free on one node.
   Sizes are powers of two, so this is enough to place them all.
2. While a job waits, at least one node is active.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from gpusage.policies.capacity.mixed_integer import FloatArray, Limits, Program, Row, solve
from gpusage.policies.capacity.problem import HOUR_S, NodeGroup, NodeType, Option
from gpusage.policies.capacity.state import Choice, State, Waiting

LEAST_WINDOW = 60
WINDOW_PER_GPU = 2
"""Jobs that are looked at, per free GPU; those that press least are left for a later event."""
IDLE_SHARE = 0.3
"""A GPU that is not used now stays idle for about this share of a job's time, where few jobs wait."""
WAITING_SHARE = 0.02
"""An hour of waiting counts as this share of what the job's GPUs cost in an hour, so that nothing waits for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A column of the program: one job, one way to run it, and its cost now less its cost later."""

    index: int
    option: Option
    cost: float


def decide(state: State, limits: Limits) -> Choice:
    """Return what starts now, at about the least cost now and later."""
    window = _window(state)
    crowd = Crowd(state, window)
    later = [crowd.later_cost(place) for place in range(len(window))]
    idle_s = crowd.idle_s
    closed = list(state.closed())
    starts = list(_starts(state, window, crowd))
    if not starts:
        return Choice(starts=(), opened={}, gap=0.0)
    opening = [kind.price_per_hour / HOUR_S * idle_s for _, kind in closed]
    program = Program(
        costs=np.array([*(start.cost for start in starts), *opening]),
        highest=np.array([*(1.0 for _ in starts), *(float(len(state.off[group.name])) for group, _ in closed)]),
        rows=list(_rows(state, starts, closed)),
        offset=sum(later),
    )
    solution = solve(program, limits, _first(program, starts, closed, state))
    taken = [(start.index, start.option) for start, value in zip(starts, solution.values, strict=False) if value]
    counts = solution.values[len(starts) :].tolist()
    opened = {(group.name, kind.name): count for (group, kind), count in zip(closed, counts, strict=True) if count}
    return Choice(starts=taken, opened=opened, gap=solution.gap)


def _window(state: State) -> list[tuple[int, Waiting]]:
    """Return the jobs that press most, each with its place in the queue."""
    order = sorted(
        enumerate(state.waiting), key=lambda item: (item[1].latest_start_s, item[1].job.submitted_s, item[0])
    )
    free = sum(node.free_count for node in state.active) + sum(
        len(state.off[group.name]) * max(kind.gpu_count for kind in group.types) for group in state.groups
    )
    return order[: max(LEAST_WINDOW, WINDOW_PER_GPU * free)]


class Crowd:
    """What the jobs that wait do to each other: how long each waits for those before it, and whom each holds up.

    Attributes:
        load: Jobs that wait, per GPU of the whole cluster, at most 1.
        idle_s: How long a GPU that is not used now is likely to stay idle.
        ahead_s: How long the jobs before each one keep the whole cluster busy.
        others: What it costs, for each second that a job keeps one GPU, that all others which hurry wait longer.
        behind: The same of those that come after it.
    """

    def __init__(self, state: State, window: Sequence[tuple[int, Waiting]]) -> None:
        self.state = state
        self.jobs = [each for _, each in window]
        self.load = min(len(self.jobs) / state.gpu_count, 1.0)
        self.idle_s = IDLE_SHARE * (1.0 - self.load) * fmean(each.cheapest.time_s for each in self.jobs)
        work_s = np.array([each.cheapest.gpu_count * each.cheapest.time_s for each in self.jobs]) / state.gpu_count
        self.ahead_s = np.cumsum(work_s) - work_s
        hurries = np.array([each.latest_start_s for each in self.jobs]) < state.now_s + work_s.sum()
        prices_per_s = np.array([each.job.late_price_per_hour for each in self.jobs]) / HOUR_S * hurries
        prices = prices_per_s * self.load / state.gpu_count
        self.others = prices.sum() - prices
        self.behind = prices.sum() - np.cumsum(prices)

    def later_cost(self, place: int) -> float:
        """Return what the job at *place* will cost if it does not start now."""
        each = self.jobs[place]
        turn_s = (2.0 - self.load) * each.fastest.time_s
        start_s = self.state.now_s + turn_s + float(self.ahead_s[place])
        hold_up = float(self.behind[place])
        return min(self._cost(each, option, start_s, hold_up) for option in each.options)

    def cost_now(self, place: int, option: Option) -> float:
        """Return what it costs that the job at *place* starts now."""
        return self._cost(self.jobs[place], option, self.state.now_s, float(self.others[place]))

    def _cost(self, each: Waiting, option: Option, start_s: float, hold_up: float) -> float:
        """Return the price of the job's GPUs, of its lateness, of those it holds up, and a little for its waiting."""
        waits = WAITING_SHARE * each.cheapest.cost * (start_s - self.state.now_s) / each.cheapest.time_s
        late = each.job.late_cost(start_s + option.time_s)
        return option.cost + late + waits + hold_up * option.gpu_count * option.time_s


def _starts(state: State, window: Sequence[tuple[int, Waiting]], crowd: Crowd) -> Iterator[Start]:
    """Yield each way in which a job could start now; it saves the time that its GPUs would else be idle."""
    room = _room(state)
    for place, (index, each) in enumerate(window):
        later = crowd.later_cost(place)
        for option in each.options:
            if option.gpu_count <= room.get(option.type.name, 0):
                saved = option.gpu_count * option.type.gpu_price_per_s * min(crowd.idle_s, option.time_s)
                yield Start(index=index, option=option, cost=crowd.cost_now(place, option) - saved - later)


def _room(state: State) -> dict[str, int]:
    """Return the most GPUs that a job can have on one node now, by type."""
    room: dict[str, int] = {}
    for name, count in [
        *((node.type.name, node.free_count) for node in state.active),
        *((kind.name, kind.gpu_count) for _, kind in state.closed()),
    ]:
        room[name] = max(room.get(name, 0), count)
    return room


def _rows(state: State, starts: Sequence[Start], closed: Sequence[tuple[NodeGroup, NodeType]]) -> Iterator[Row]:
    by_job: dict[int, list[int]] = {}
    by_type: dict[str, list[int]] = {}
    for column, start in enumerate(starts):
        by_job.setdefault(start.index, []).append(column)
        by_type.setdefault(start.option.type.name, []).append(column)
    for columns in by_job.values():
        yield Row(columns=columns, factors=[1.0] * len(columns), high=1.0)
    for name, columns in by_type.items():
        yield from _sizes(state, starts, closed, name, columns)
    new = range(len(starts), len(starts) + len(closed))
    for name, off in state.off.items():
        columns = [column for column, (group, _) in zip(new, closed, strict=True) if group.name == name]
        if columns:
            yield Row(columns=columns, factors=[1.0] * len(columns), high=float(len(off)))
    if not state.active and closed:
        yield Row(columns=list(range(len(starts))), factors=[1.0] * len(starts), low=1.0, high=float(len(starts)))


def _sizes(
    state: State,
    starts: Sequence[Start],
    closed: Sequence[tuple[NodeGroup, NodeType]],
    name: str,
    columns: Sequence[int],
) -> Iterator[Row]:
    """Yield a row for each size: so many pieces of as many GPUs are free on nodes of the type *name*."""
    for size in sorted({starts[column].option.gpu_count for column in columns}):
        large = [column for column in columns if starts[column].option.gpu_count >= size]
        new = [len(starts) + place for place, (_, kind) in enumerate(closed) if kind.name == name]
        pieces = [-float(kind.gpu_count // size) for _, kind in closed if kind.name == name]
        factors = [starts[column].option.gpu_count / size for column in large]
        free = sum(node.free_count // size for node in state.active if node.type.name == name)
        yield Row(columns=[*large, *new], factors=[*factors, *pieces], high=float(free))


def _first(
    program: Program, starts: Sequence[Start], closed: Sequence[tuple[NodeGroup, NodeType]], state: State
) -> FloatArray:
    """Return a choice that holds: nothing starts, or, where no node is active, the one job that gains most."""
    values = np.zeros(len(program.costs))
    if state.active or not closed:
        return values
    fits = [(start.cost, place) for place, start in enumerate(starts)]
    best = min(fits)[1]
    values[best] = 1.0
    kind = starts[best].option.type.name
    values[len(starts) + next(place for place, (_, each) in enumerate(closed) if each.name == kind)] = 1.0
    return values
