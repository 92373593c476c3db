"""EASY backfill is EASY: the simulator starts jobs as a second one does, written to be read and not to be fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

from gpusage_hooks.types import Cluster
from gpusage_planning.simulator.contract import Jobs, Kind, UnslowedTruth
from gpusage_planning.simulator.engine import simulate
from gpusage_planning.simulator.fleet import Fleet, GpuType
from gpusage_planning.simulator.policies import Slots

Counts = list[int]
"""GPUs on each node."""


@dataclass
class Job:
    """A job of the oracle; *on* says how many GPUs it has on each node."""

    submit_s: float
    work_s: float
    limit_s: float
    count: int
    start_s: float = -1.0
    on: Counts = field(default_factory=list)


class Easy:
    """EASY on nodes of one size. A job stands on whole nodes, and what is left of it on the fullest that has room."""

    def __init__(self, jobs: Sequence[Job], node_count: int, per_node: int) -> None:
        self.jobs, self.node_count, self.per_node = jobs, node_count, per_node
        self.queue: list[Job] = []
        self.running: list[Job] = []

    def run(self) -> list[float]:
        """Return when each job starts."""
        todo = [*self.jobs]
        while todo or self.running:
            ends = [job.start_s + job.work_s for job in self.running]
            now_s = min([*ends, *(job.submit_s for job in todo[:1])])
            self.running = [job for job, end_s in zip(self.running, ends, strict=True) if end_s > now_s]
            while todo and todo[0].submit_s == now_s:
                self.queue.append(todo.pop(0))
            self.schedule(now_s)
        return [job.start_s for job in self.jobs]

    def schedule(self, now_s: float) -> None:
        """Start the first jobs, then those that do not delay the next one."""
        while self.queue and (on := self.spot(self.empty(), self.queue[0].count)):
            self.start(self.queue[0], on, now_s)
        if not self.queue:
            return

        first = self.queue[0]
        moments = sorted({max(job.start_s + job.limit_s, now_s) for job in self.running})
        until_s = next(at_s for at_s in moments if self.spot(self.empty(at_s), first.count))
        for job in self.queue[1:]:
            free, then, stays = self.empty(), self.empty(until_s), now_s + job.limit_s > until_s
            if stays:
                free = [self.spare(has, then, node, first.count) for node, has in enumerate(free)]
            on = self.spot(free, job.count)
            if on and (not stays or self.spot([has - own for has, own in zip(then, on, strict=True)], first.count)):
                self.start(job, on, now_s)

    def start(self, job: Job, on: Counts, now_s: float) -> None:
        """Start a job."""
        job.start_s, job.on = now_s, on
        self.queue.remove(job)
        self.running.append(job)

    def empty(self, at_s: float = -1.0) -> Counts:
        """Return the empty GPUs of each node: now, or later by time limits."""
        stay = [job.on for job in self.running if at_s < job.start_s + job.limit_s or at_s < 0]
        return [self.per_node - sum(on[node] for on in stay) for node in range(self.node_count)]

    def spare(self, has: int, then: Counts, node: int, count: int) -> int:
        """Return how many of the *has* GPUs of *node* a job may have that does not delay the first one."""
        without = [[one - taken * (place == node) for place, one in enumerate(then)] for taken in range(has + 1)]
        return max(taken for taken in range(has + 1) if not taken or self.spot(without[taken], count))

    def spot(self, free: Counts, count: int) -> Counts | None:
        """Return where a job stands; ``None`` where it has no room."""
        whole, rest = divmod(count, self.per_node)
        on = [0] * self.node_count
        for node in [place for place, has in enumerate(free) if has == self.per_node][:whole]:
            on[node] = self.per_node
        others = [(has, node) for node, has in enumerate(free) if has >= rest and not on[node]]
        if sum(on) < whole * self.per_node or (rest and not others):
            return None
        if rest:
            on[min(others)[1]] = rest
        return on


def simulated(jobs: Sequence[Job], node_count: int, per_node: int) -> list[float]:
    """Return when the simulator starts each job."""
    one = GpuType(name="t", gpu_count=node_count * per_node, gpus_per_node=per_node)
    fleet = Fleet(types=(one,), cluster=Cluster(manager="none", version="", pools=()))
    trace = Jobs(
        ids=[str(number) for number in range(len(jobs))],
        submit_s=np.array([job.submit_s for job in jobs]),
        work_s=np.array([job.work_s for job in jobs]),
        limit_s=np.array([job.limit_s for job in jobs]),
        gpu_count=np.array([job.count for job in jobs], dtype=np.int32),
        kind=np.zeros(len(jobs), dtype=np.int32),
        user=np.zeros(len(jobs), dtype=np.int32),
        kinds=(Kind(name="k"),),
        users=("someone",),
    )
    starts: list[float] = simulate(trace, fleet, Slots(fleet=fleet), UnslowedTruth()).start_s.tolist()
    return starts


def drawn(seed: int) -> tuple[list[Job], int, int]:
    """Return jobs that keep a small cluster full, and its nodes; some jobs run for longer than their limits."""
    generator = np.random.default_rng(seed)
    node_count, per_node = [(1, 8), (8, 1), (4, 2), (3, 4), (2, 8)][seed % 5]
    count, most = 60, node_count * per_node
    submit_s = np.cumsum(generator.integers(0, 15, count)).tolist()
    counts = np.minimum(generator.choice([1, 1, 1, 2, 3, 4, 6, 8], count), most).tolist()
    work_s = generator.choice([10.0, 20.0, 40.0, 70.0, 150.0], count)
    limit_s = (work_s * generator.choice([0.5, 1.0, 1.0, 1.5, 3.0], count)).tolist()
    columns = zip(submit_s, work_s.tolist(), limit_s, counts, strict=True)
    return [Job(float(at_s), *rest) for at_s, *rest in columns], node_count, per_node


@pytest.mark.parametrize("seed", range(50))
def test_jobs_start_as_another_easy_starts_them(seed: int) -> None:
    jobs, node_count, per_node = drawn(seed)
    expected = Easy(jobs, node_count, per_node).run()
    assert simulated(jobs, node_count, per_node) == expected
    assert any(later < earlier for earlier, later in pairwise(expected)), "nobody overtakes: this tests nothing"


def test_a_job_on_two_gpus_overtakes_where_it_ends_in_time() -> None:
    """One node of 4: while 2 GPUs run for 1000 s and a job waits for all 4, one on 2 for 100 s starts at once."""
    jobs = [Job(0.0, 1000.0, 1000.0, 2), Job(1.0, 100.0, 100.0, 4), Job(2.0, 100.0, 100.0, 2)]
    starts = simulated(jobs, 1, 4)
    assert starts == [0.0, 1000.0, 2.0]
    assert np.mean(np.array(starts) - [0.0, 1.0, 2.0]) == 333.0
