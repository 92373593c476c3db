"""When running jobs are suspended for others, and for which: all jobs are ranked, and the first ones run.

Jobs go in the order of their ranks. A job runs if its GPU type has as many GPUs left as it asks for, counted without
nodes; jobs behind one that does not fit are tried. That is how Lucid's, Tiresias' and Gavel's schedulers choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, inf

from gpusage_lab.simulator.contract import ByGpuType, QueuedJob
from gpusage_lab.simulator.queue_state import Queue
from gpusage_lab.simulator.runs import Run, Runs
from gpusage_lab.simulator.waiting import Pool

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
        self._order = queue.ordering.order

    def request(self, now_s: float) -> None:
        """Have a round as soon as there may be one."""
        period_s = self._order.period_s
        next_s = max(ceil(now_s / period_s) * period_s, now_s) if period_s > 0 else now_s
        self.next_s = min(self.next_s, next_s)

    def select(self) -> Selection:
        """Return what changes now; where somebody still waits and ranks change with time, another round follows."""
        selection = Selection()
        self.next_s = inf
        if not self._waiting and not isinstance(self._order, ByGpuType):
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
            self.next_s = self._after(self._queue.now_s)
        return selection

    def _after(self, now_s: float) -> float:
        """Return the next multiple of the period after *now_s*; never where only comings and ends call for a round."""
        period_s = self._order.period_s
        if period_s == 0:
            return inf
        next_s = (floor(now_s / period_s) + 1) * period_s
        return next_s if next_s > now_s else next_s + period_s

    def _placed(self) -> dict[int, int]:
        """Return the jobs that shall run with their GPU types, the first ones first."""
        room = [float(one.gpu_count) for one in self._queue.fleet.types]
        placed: dict[int, int] = {}
        entries: list[Entry] = [entry for number, _ in self._waiting.jobs() for entry in self._entries(number, None)]
        for number, run in self._runs.items():
            gpu_type = self._type_of[run.gpus[0]]
            if may_stop(run):
                entries += self._entries(number, gpu_type)
            else:
                room[gpu_type] -= self._queue.jobs[number].gpus
        for _, number, types in sorted(entries):
            job = self._queue.jobs[number]
            if number in placed:
                continue
            for gpu_type in types:
                if job.gpus <= room[gpu_type] + LEAST_GPUS:
                    room[gpu_type] -= job.gpus
                    placed[number] = gpu_type
                    break
        return placed

    def _entries(self, number: int, current_type: int | None) -> Iterator[Entry]:
        """Yield the places of a job in the queue; where it runs, it would stay on its GPU type."""
        queue, order = self._queue, self._order
        job: QueuedJob = queue.jobs[number]
        types = tuple(sorted(job.types, key=lambda one: one != current_type))
        if isinstance(order, ByGpuType):
            for gpu_type in types:
                yield order.rank_on(job, gpu_type, queue.now_s, queue), number, (gpu_type,)
        else:
            yield order.rank(job, queue.now_s, queue), number, types


def may_stop(run: Run) -> bool:
    """Return whether a run can be suspended: it works, or gets ready for it."""
    return run.way in ("work", "start")
