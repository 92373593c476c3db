"""Jobs on GPUs: how much work each has left, how fast it goes, and when it will end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Literal

from gpusage_planning.simulator.gpus import Gpus
from gpusage_planning.simulator.roles import Roles

Way = Literal["work", "profile", "out_of_memory", "start"]
"""Whether a run does the job's work to its end, only takes time until the job waits again, or precedes its work."""


class Run:
    """One job on its GPUs, until it ends or is sent back."""

    __slots__ = ("gpus", "left_s", "role", "since_s", "speed", "started_s", "version", "way")

    def __init__(self, role: int, gpus: Sequence[int], way: Way, left_s: float, now_s: float) -> None:
        self.role, self.gpus, self.way, self.left_s = role, gpus, way, left_s
        self.since_s = self.started_s = now_s
        self.speed, self.version = 0.0, 0


class Runs:
    """All runs that go on, and the times at which they end."""

    def __init__(self, gpus: Gpus, roles: Roles) -> None:
        self._gpus, self._roles = gpus, roles
        self._runs: dict[int, Run] = {}
        self._ends: list[tuple[float, int, int]] = []
        self._version = 0

    def begin(self, job: int, run: Run, now_s: float) -> None:
        """Put *job* on its GPUs."""
        self._runs[job] = run
        gpus = self._gpus
        for gpu in run.gpus:
            gpus.jobs[gpu].append(job)
            gpus.started[gpu] += 1
            gpus.move(gpu, tuple(sorted((*gpus.here[gpu], run.role))), now_s)
        self._retime(run.gpus[0], now_s)

    def next_end(self, before_s: float) -> tuple[float, int, Run] | None:
        """Take the next job that ends no later than *before_s* off its GPUs; ``None`` where none does."""
        ends, runs = self._ends, self._runs
        while ends and ends[0][0] <= before_s:
            now_s, job, version = heappop(ends)
            run = runs.get(job)
            if run is not None and run.version == version:
                self._leave(job, run, now_s)
                return now_s, job, run
        return None

    def suspend(self, job: int, now_s: float) -> Run:
        """Take *job* off its GPUs before its end; its run has what is left."""
        run = self._runs[job]
        run.left_s = self.left(job, now_s)[1]
        self._leave(job, run, now_s)
        return run

    def left(self, job: int, now_s: float) -> tuple[Way, float]:
        """Return what *job* does, and how much of it is left."""
        run = self._runs[job]
        return run.way, max(run.left_s - (now_s - run.since_s) * run.speed, 0.0)

    def items(self) -> Iterator[tuple[int, Run]]:
        """Yield each job that is on GPUs with its run."""
        yield from self._runs.items()

    def _leave(self, job: int, run: Run, now_s: float) -> None:
        del self._runs[job]
        gpus = self._gpus
        for gpu in run.gpus:
            gpus.jobs[gpu].remove(job)
            here = gpus.here[gpu]
            at = here.index(run.role)
            gpus.move(gpu, here[:at] + here[at + 1 :], now_s)
            self._retime(gpu, now_s)

    def _retime(self, gpu: int, now_s: float) -> None:
        """Compute again when the jobs on *gpu* end, after one came or left at *now_s*."""
        gpus = self._gpus
        jobs = gpus.jobs[gpu]
        if not jobs:
            return
        speeds = self._roles.scene(gpus.type_of[gpu], gpus.here[gpu]).speeds
        for job in jobs:
            run = self._runs[job]
            speed = speeds[run.role] if run.way == "work" else 1.0
            if speed == run.speed:
                continue
            run.left_s -= (now_s - run.since_s) * run.speed
            run.since_s, run.speed = now_s, speed
            self._version += 1
            run.version = self._version
            heappush(self._ends, (now_s + max(run.left_s, 0.0) / speed, job, run.version))
