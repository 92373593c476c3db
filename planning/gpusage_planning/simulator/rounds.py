"""When running jobs are suspended for others, and for which: all jobs are ranked, and the first ones run.

Jobs go in the order of their ranks. A job runs if its GPU type has as many GPUs left as it asks for, counted without
nodes; jobs behind one that does not fit are tried. That is how Lucid's, Tiresias' and Gavel's schedulers choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from math import ceil, floor, inf

import numpy as np

from gpusage_planning.simulator.contract import AtOnce, Steady
from gpusage_planning.simulator.queue_state import Queue
from gpusage_planning.simulator.runs import Run, Runs
from gpusage_planning.simulator.waiting import Lane, Pool

Entry = tuple[float, int, tuple[int, ...]]
"""A job's rank, its number, and the GPU types on which it has that rank, those to try first at the front."""
LEAST_GPUS = 1e-9
"""GPUs that rounding may bring about."""


@dataclass(slots=True)
class Selection:
    """What changes in a round.

    Attributes:
        suspended: Jobs that run and shall not, or on another GPU type.
        started: Jobs that shall start, the first ones first, each with its GPU type.
    """

    suspended: list[int] = field(default_factory=list)
    started: list[tuple[int, int]] = field(default_factory=list)


class Rounds:
    """The next round, and which jobs run after it.

    Attributes:
        next_s: When it is; infinite where nothing calls for one.
    """

    def __init__(self, queue: Queue, runs: Runs, waiting: Pool, type_of: Sequence[int]) -> None:
        self.next_s = inf
        self._queue, self._runs, self._waiting, self._type_of = queue, runs, waiting, type_of
        self._order = order = queue.ordering.order
        self._steady = order if isinstance(order, Steady) else None
        self._at_once = order if isinstance(order, AtOnce) else None
        self._is_by_gpu_type = self._at_once is not None and self._at_once.is_by_gpu_type

    def request(self, now_s: float) -> None:
        """Have a round as soon as there may be one."""
        period_s = self._order.period_s
        next_s = max(ceil(now_s / period_s) * period_s, now_s) if period_s > 0 else now_s
        self.next_s = min(self.next_s, next_s)

    def select(self) -> Selection:
        """Return what changes now; where somebody still waits and ranks change with time, another round follows."""
        selection = Selection()
        self.next_s = inf
        if not self._waiting and not self._is_by_gpu_type:
            return selection
        placed, running = self._placed(), dict(self._runs.items())
        for number, gpu_type in placed.items():
            run = running.get(number)
            if run is None or self._type_of[run.gpus[0]] != gpu_type:
                selection.started.append((number, gpu_type))
        selection.suspended = [
            number
            for number, run in running.items()
            if may_stop(run) and placed.get(number) != self._type_of[run.gpus[0]]
        ]
        if self._waiting or selection.suspended:
            self.next_s = self._after(self._queue.now_s, placed)
        return selection

    def _after(self, now_s: float, placed: Mapping[int, int]) -> float:
        """Return the first multiple of the period after *now_s* at which ranks may differ; never where none will."""
        period_s, queue = self._order.period_s, self._queue
        if period_s == 0:
            return inf
        change_s = now_s
        if self._steady is not None:
            changes = (self._steady.next_change_s(queue.jobs[number], now_s, queue) for number in placed)
            change_s = min(changes, default=inf)
        if change_s == inf:
            return inf
        next_s = max(floor(change_s / period_s), floor(now_s / period_s) + 1) * period_s
        return next_s if next_s > now_s else next_s + period_s

    def _placed(self) -> dict[int, int]:
        """Return the jobs that shall run with their GPU types, the first ones first."""
        room = [float(one.gpu_count) for one in self._queue.fleet.types]
        running: dict[int, int] = {}
        for number, run in self._runs.items():
            gpu_type = self._type_of[run.gpus[0]]
            if may_stop(run):
                running[number] = gpu_type
            else:
                room[gpu_type] -= self._queue.jobs[number].gpus
        jobs, placed = self._queue.jobs, dict[int, int]()
        least = min(
            [*(jobs[number].gpus for number in running), *(gpus for gpus, _ in self._waiting.lanes)], default=inf
        )
        closed: set[Lane] = set()
        entries = self._entries(running) if self._steady is None else self._steady_entries(running, closed)
        for _, number, types in entries:
            gpus = jobs[number].gpus
            if number in placed or (gpus, types) in closed:
                continue
            for gpu_type in types:
                if gpus <= room[gpu_type] + LEAST_GPUS:
                    room[gpu_type] -= gpus
                    placed[number] = gpu_type
                    break
            else:
                closed.add((gpus, types))
                if max(room) + LEAST_GPUS < least:
                    break
        return placed

    def _steady_entries(self, running: Mapping[int, int], closed: set[Lane]) -> Iterator[Entry]:
        """Yield all jobs in their order; those of the lanes that are *closed* meanwhile may be left out."""
        queue, order = self._queue, self._order
        now = [
            (order.rank(job := queue.jobs[number], queue.now_s, queue), number, _first(gpu_type, job.types))
            for number, gpu_type in running.items()
        ]
        lanes = self._waiting.lanes
        return merge(sorted(now), *(_open_entries(lane, lanes[lane], closed) for lane in lanes))

    def _entries(self, running: Mapping[int, int]) -> Iterator[Entry]:
        """Yield the same, each job ranked anew; for each of its GPU types where its place depends on the type."""
        queue, order = self._queue, self._order
        numbers = [*(number for number, _ in self._waiting.jobs()), *running]
        if not numbers:
            return
        if self._at_once is not None:
            ranks = self._at_once.ranks(np.array(numbers, dtype=np.int32), queue.now_s, queue)
        else:
            ranks = np.array([[order.rank(queue.jobs[number], queue.now_s, queue)] for number in numbers])
        columns = ranks.shape[1]
        for place in np.lexsort((np.repeat(numbers, columns), ranks.ravel())).tolist():
            row, gpu_type = divmod(place, columns)
            number = numbers[row]
            types = queue.jobs[number].types
            if not self._is_by_gpu_type:
                yield ranks[row, 0], number, _first(running.get(number), types)
            elif gpu_type in types:
                yield ranks[row, gpu_type], number, (gpu_type,)


def _first(current_type: int | None, types: tuple[int, ...]) -> tuple[int, ...]:
    """Return *types*, those to try first at the front: where a job runs, it would stay on its GPU type."""
    return types if current_type is None else tuple(sorted(types, key=lambda one: one != current_type))


def _open_entries(lane: Lane, entries: Sequence[tuple[float, int]], closed: set[Lane]) -> Iterator[Entry]:
    for rank, number in entries:
        if lane in closed:
            return
        yield rank, number, lane[1]


def may_stop(run: Run) -> bool:
    """Return whether a run can be suspended: it works, or gets ready for it."""
    return run.way in ("work", "start")
