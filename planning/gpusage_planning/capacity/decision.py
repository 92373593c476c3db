"""What starts now: one mixed-integer program at each event.

Each waiting job starts now, in one way, or later; "later" is a relaxation of all that is still to come. Periods grow:
the next minutes are fine, tomorrow is coarse. In all but the present, jobs may be divided, GPUs of one name are one
pool, and a node is paid for the part of it that is used; so later is a little cheaper than it will be. The cost is
that of GPUs by the period, and of lateness. Boots and what is billed beyond the time on are left out for now and
later alike: where only the present had them, every job would wait.

Invariants:

1. What starts now fits: for each size 1, 2, 4... the jobs that need as many GPUs or more find that many free on one
   node. Sizes are powers of two, so this is enough to place them all.
2. While a job waits, at least one node is active.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusage_hooks.units import HOUR_S
from gpusage_planning.capacity.mixed_integer import Limits, Program, Row, solve
from gpusage_planning.capacity.problem import Choice, NodeGroup, NodeType, Option, State, Waiting
from gpusage_planning.capacity.whole import RULES, by_rule

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
PARTS = np.array([1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0])
"""When later starts, as parts of the time in which all work could be done."""
ENDLESS = 8.0
"""The last period, as a multiple of that time."""
WAITING_SHARE = 0.02
"""An hour of waiting counts as this share of what the job's GPUs cost in an hour."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StartOptions:
    """Each way to start a job, a column each: which job, on which GPUs, when, and what it takes.

    Attributes:
        job: The job's place in the window.
        gpu: The GPU's number.
        gpu_count: How many of them.
        time_s: How long it runs.
        start_s: When it starts, from now on.
    """

    job: IntArray
    gpu: IntArray
    gpu_count: FloatArray
    time_s: FloatArray
    start_s: FloatArray

    def __len__(self) -> int:
        return len(self.job)

    def use_s(self, edges_s: FloatArray) -> FloatArray:
        """Return the GPU seconds of each way in each period."""
        start, end = self.start_s[:, None], (self.start_s + self.time_s)[:, None]
        return np.asarray(self.gpu_count[:, None] * overlap_s(start, end, edges_s))

    def costs(self, jobs: Sequence[Waiting], now_s: float) -> FloatArray:
        """Return the cost of lateness, and a little for waiting, so that no job waits without a reason."""
        deadline = np.array([each.job.latest_end_s for each in jobs])[self.job]
        price = np.array([each.job.late_price_per_hour for each in jobs])[self.job]
        usual = np.array([each.cheapest.cost / each.cheapest.time_s for each in jobs])[self.job]
        late_s = np.maximum(now_s + self.start_s + self.time_s - deadline, 0.0)
        return np.asarray(late_s / HOUR_S * price + WAITING_SHARE * usual * self.start_s)


def overlap_s(start_s: FloatArray, end_s: FloatArray, edges_s: FloatArray) -> FloatArray:
    """Return how much of each stretch of time lies in each period between *edges_s*."""
    return np.asarray(np.maximum(np.minimum(end_s, edges_s[1:]) - np.maximum(start_s, edges_s[:-1]), 0.0))


def edges(state: State, jobs: Sequence[Waiting]) -> FloatArray:
    """Return where periods begin and end, in seconds from now."""
    work_s = sum(each.fastest.gpu_count * each.fastest.time_s for each in jobs) / state.gpu_count
    whole_s = work_s + max(each.fastest.time_s for each in jobs)
    return np.concatenate([[0.0], PARTS * whole_s, [ENDLESS * whole_s]])


def later(jobs: Sequence[Waiting], gpus: Sequence[str], starts_s: FloatArray) -> StartOptions:
    """Return each way to start later, once for each name of a GPU and number of GPUs."""
    rows = [
        (place, gpus.index(gpu), count, time_s)
        for place, each in enumerate(jobs)
        for (gpu, count), time_s in each.times_s
    ]
    job, gpu, count, time_s = (np.repeat(np.array(column), len(starts_s)) for column in zip(*rows, strict=True))
    return StartOptions(
        job=job.astype(np.int64),
        gpu=gpu.astype(np.int64),
        gpu_count=count.astype(np.float64),
        time_s=time_s.astype(np.float64),
        start_s=np.tile(starts_s, len(rows)),
    )


LEAST_WINDOW = 40
WINDOW_PER_GPU = 2
"""Jobs that are looked at, per free GPU; the least urgent are left for a later event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """GPUs of one name that a group of nodes can have: how many on a node at most, and their price."""

    group: NodeGroup
    gpu: str
    gpu_count: int
    price_per_s: float


class _Event:
    """One event as columns and rows: starts now, nodes opened now, later starts, and GPUs paid in each period."""

    def __init__(self, state: State) -> None:
        self.state = state

        free = sum(node.free_count for node in state.active) + sum(
            len(state.off[group.name]) * max(kind.gpu_count for kind in group.types) for group in state.groups
        )
        self.jobs = state.in_order(_by_urgency)[: max(LEAST_WINDOW, WINDOW_PER_GPU * free)]

        self.gpus = list(dict.fromkeys(kind.pool for group in state.groups for kind in group.types))
        self.edges_s = edges(state, self.jobs)
        self.lengths_s = np.diff(self.edges_s)
        self.closed = list(state.closed())
        self.starts = list(self._starts())
        self.later = later(self.jobs, self.gpus, self.edges_s[1:-1])
        self.supplies = [supply for group in state.groups for supply in _supplies(group)]
        self.first_opening = len(self.starts)
        self.first_later = self.first_opening + len(self.closed)
        self.first_paid = self.first_later + len(self.later)
        self.count = self.first_paid + len(self.supplies) * len(self.lengths_s)

    def _starts(self) -> Iterator[tuple[int, Option]]:
        """Yield each way in which a job could start now, on a node that has room for it."""
        room: dict[NodeType, int] = {}
        nodes = ((node.type, node.free_count) for node in self.state.active)

        for kind, count in (*nodes, *((kind, kind.gpu_count) for _, kind in self.closed)):
            room[kind] = max(room.get(kind, 0), count)
        for place, each in enumerate(self.jobs):
            for option in each.options:
                end_s = self.state.now_s + option.type.boot_s + option.time_s
                if option.gpu_count <= room.get(option.type, 0) and end_s <= option.type.until_s:
                    yield place, option

    def program(self) -> Program:
        now = self.now()
        costs = np.zeros(self.count)
        # Boots and least billing are left out: counted for the present alone, every job would wait, and plans cost
        # 3 to 11 times the best (docs/decisions/planning.md).
        costs[: self.first_opening] = now.costs(self.jobs, self.state.now_s)
        costs[self.first_later : self.first_paid] = self.later.costs(self.jobs, self.state.now_s)
        prices = np.array([supply.price_per_s for supply in self.supplies])
        costs[self.first_paid :] = np.outer(prices, self.lengths_s).ravel()
        highest = np.ones(self.count)

        for place, (group, _) in enumerate(self.closed):
            highest[self.first_opening + place] = len(self.state.off[group.name])
        highest[self.first_paid :] = np.inf
        whole = np.zeros(self.count, dtype=np.bool_)
        whole[: self.first_later] = True

        return Program(costs=costs, highest=highest, whole=whole, rows=list(self.rows(now)))

    def now(self) -> StartOptions:
        """Return the starts now as columns."""
        return StartOptions(
            job=np.array([place for place, _ in self.starts], dtype=np.int64),
            gpu=np.array([self.gpus.index(option.type.pool) for _, option in self.starts], dtype=np.int64),
            gpu_count=np.array([float(option.gpu_count) for _, option in self.starts]),
            time_s=np.array([option.time_s for _, option in self.starts]),
            start_s=np.zeros(len(self.starts)),
        )

    def paid(self, place: int, period: int) -> int:
        """Return the column of the GPUs that the supply at *place* has in a period."""
        return self.first_paid + place * len(self.lengths_s) + period

    def rows(self, now: StartOptions) -> Iterator[Row]:
        yield from self._once(now)
        busy_s, on_s = self._taken_s()
        yield from self._capacity_rows(now, busy_s)
        yield from self._owned(on_s)
        yield from self._there()
        yield from self._sizes()

        for name, off in self.state.off.items():
            columns = [self.first_opening + place for place, (group, _) in enumerate(self.closed) if group.name == name]
            if columns:
                yield Row(columns=columns, factors=[1.0] * len(columns), high=float(len(off)))
        # Invariant 2: else a program that starts nothing would be the cheapest.
        if not self.state.active and self.closed:
            count = len(self.starts)
            yield Row(columns=range(count), factors=[1.0] * count, low=1.0, high=float(count))

    def _once(self, now: StartOptions) -> Iterator[Row]:
        """Yield a row per job: it starts once."""
        jobs = np.concatenate([now.job, self.later.job])
        columns = np.concatenate([np.arange(len(now)), self.first_later + np.arange(len(self.later))])
        order = np.argsort(jobs, kind="stable")
        for own in np.split(columns[order], np.cumsum(np.bincount(jobs, minlength=len(self.jobs)))[:-1]):
            yield Row(columns=own, factors=np.ones(len(own)), low=1.0, high=1.0)

    def _capacity_rows(self, now: StartOptions, busy_s: FloatArray) -> Iterator[Row]:
        """Yield a row per GPU and period: no more GPUs are used than paid."""
        gpu = np.concatenate([now.gpu, self.later.gpu])
        columns = np.concatenate([np.arange(len(now)), self.first_later + np.arange(len(self.later))])
        use_s = np.concatenate([now.use_s(self.edges_s), self.later.use_s(self.edges_s)])

        for number, name in enumerate(self.gpus):
            supplies = [place for place, supply in enumerate(self.supplies) if supply.gpu == name]
            running_s = busy_s[supplies].sum(axis=0)
            for period, length_s in enumerate(self.lengths_s.tolist()):
                chosen = (gpu == number) & (use_s[:, period] > 0.0)
                paid = [self.paid(place, period) for place in supplies]
                yield Row(
                    columns=np.concatenate([columns[chosen], paid]).astype(np.int64),
                    factors=np.concatenate([use_s[chosen, period] / length_s, [-1.0] * len(paid)]),
                    high=-float(running_s[period]) / length_s,
                )

    def _taken_s(self) -> tuple[FloatArray, FloatArray]:
        """Return GPU seconds of each supply in each period: those of running jobs, and those of their whole nodes."""
        busy, on = np.zeros((2, len(self.supplies), len(self.lengths_s)))
        active = self.state.active
        if not active:
            return busy, on

        places = {(supply.group.name, supply.gpu): place for place, supply in enumerate(self.supplies)}
        place = np.array([places[node.group.name, node.type.pool] for node in active])
        job_counts = [len(node.running) for node in active]
        running = [each for node in active for each in node.running]
        left_s = self._periods(np.array([each.start_s + each.option.time_s - self.state.now_s for each in running]))
        counts = np.array([each.option.gpu_count for each in running])
        np.add.at(busy, np.repeat(place, job_counts), counts[:, None] * left_s)
        longest_s = np.maximum.reduceat(left_s, np.cumsum([0, *job_counts[:-1]]))
        np.add.at(on, place, np.array([node.type.gpu_count for node in active])[:, None] * longest_s)

        return busy, on

    def _periods(self, ends_s: FloatArray) -> FloatArray:
        """Return how much of each period lies before each of *ends_s*; what is overdue ends in a moment."""
        return overlap_s(np.zeros((1, 1)), np.maximum(ends_s, 1.0)[:, None], self.edges_s)

    def _owned(self, on_s: FloatArray) -> Iterator[Row]:
        """Yield rows of what is paid at least: active nodes until their last job ends, and new ones at first."""
        for place, supply in enumerate(self.supplies):
            new = [
                (self.first_opening + column, -float(kind.gpu_count))
                for column, (group, kind) in enumerate(self.closed)
                if group.name == supply.group.name and kind.pool == supply.gpu
            ]
            for period, length_s in enumerate(self.lengths_s.tolist()):
                opening = () if period else new
                columns = [self.paid(place, period), *(column for column, _ in opening)]
                factors = [1.0, *(factor for _, factor in opening)]
                yield Row(columns=columns, factors=factors, low=float(on_s[place][period]) / length_s, high=np.inf)

    def _there(self) -> Iterator[Row]:
        """Yield rows of what is paid at most: the nodes that there are."""
        for group in self.state.groups:
            own = [(place, each) for place, each in enumerate(self.supplies) if each.group is group]
            until_s = max(kind.until_s for kind in group.types)
            there = self._periods(np.array([until_s - self.state.now_s]))[0] / self.lengths_s
            for period in range(len(self.lengths_s)):
                columns = [self.paid(place, period) for place, _ in own]
                factors = [1.0 / each.gpu_count for _, each in own]
                yield Row(columns=columns, factors=factors, high=float(group.node_count * there[period]))

    def _sizes(self) -> Iterator[Row]:
        """Yield a row per type and size: so many pieces of as many GPUs are free on its nodes."""
        by_type: dict[NodeType, list[int]] = {}
        for column, (_, option) in enumerate(self.starts):
            by_type.setdefault(option.type, []).append(column)
        for kind, columns in by_type.items():
            new = [self.first_opening + place for place, (_, closed) in enumerate(self.closed) if closed == kind]
            for size in sorted({self.starts[column][1].gpu_count for column in columns}):
                large = [column for column in columns if self.starts[column][1].gpu_count >= size]
                pieces = [-float(kind.gpu_count // size)] * len(new)
                factors = [self.starts[column][1].gpu_count / size for column in large]
                free = sum(node.free_count // size for node in self.state.active if node.type == kind)
                yield Row(columns=[*large, *new], factors=[*factors, *pieces], high=float(free))


def decide(state: State, limits: Limits) -> Choice:
    """Return what starts now, at about the least cost now and later.

    Where the time is over before there is any solution, the job of the earliest deadline goes first.
    """
    event = _Event(state)
    if not event.starts:
        return Choice(starts=(), opened={})

    solution = solve(event.program(), limits)
    # HiGHS ran out of time before it had any solution.
    if solution is None:
        return by_rule(RULES["earliest deadline"])(state)
    values = np.rint(solution[: event.first_later]).astype(np.int64).tolist()
    taken = [(event.jobs[place], option) for (place, option), value in zip(event.starts, values, strict=False) if value]
    counts = values[event.first_opening :]
    opened = {(group.name, kind): count for (group, kind), count in zip(event.closed, counts, strict=True) if count}
    return Choice(starts=taken, opened=opened)


def _by_urgency(each: Waiting) -> tuple[float, ...]:
    return each.latest_start_s, each.job.submitted_s


def _supplies(group: NodeGroup) -> Iterator[Supply]:
    for gpu in dict.fromkeys(kind.pool for kind in group.types):
        kinds = [kind for kind in group.types if kind.pool == gpu]
        price = min(kind.gpu_price_per_s for kind in kinds)
        yield Supply(group=group, gpu=gpu, gpu_count=max(kind.gpu_count for kind in kinds), price_per_s=price)
