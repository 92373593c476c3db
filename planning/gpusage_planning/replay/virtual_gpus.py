"""GPUs that are not there: who stands on each, how fast each job goes, and when it will be done.

Times are those of the emulated cluster, in seconds. Nothing here looks at a clock.

Invariants:

1. A job does exactly its work: time on a GPU times the speed there, whoever comes and goes beside it.
2. Each stay on a GPU is recorded once, when it ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from gpusage_planning.simulator.contract import Tenant, Truth
from gpusage_planning.simulator.engine import OUT_OF_MEMORY_S

Ending = Literal["done", "out_of_memory", "gone"]
"""Whether the job did its work, had too little memory, or was ended by somebody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a job is, and what it may use.

    Attributes:
        gpu_type: Index into the cluster's types.
        device: The GPU's number on its node.
        thread_percent: 100 where nothing limits it.
        memory_cap_bytes: Infinite without a cap.
    """

    node: str
    gpu_type: int
    device: int
    thread_percent: int = 100
    memory_cap_bytes: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A job's time on a GPU, from one second of the emulated cluster to another."""

    job: int
    node: str
    device: int
    start_s: float
    end_s: float
    ending: Ending


@dataclass(slots=True, kw_only=True)
class _Run:
    """A job on its GPU: *left_s* of work as of *since_s*, at *speed* from then on."""

    seat: Seat
    start_s: float
    left_s: float
    since_s: float
    starves: bool
    speed: float = 1.0

    @property
    def end_s(self) -> float:
        return self.since_s + max(self.left_s, 0.0) / self.speed


class VirtualGpus:
    """All GPUs of an emulated cluster.

    Attributes:
        stays: Those that have ended, in the order of their ends.
        busy_s: Sum over GPUs of time times busy share.
    """

    def __init__(
        self, truth: Truth, kinds: Sequence[int], work_s: Sequence[float], memory_bytes: Sequence[float]
    ) -> None:
        """Store what happens, each job's kind and work, and each GPU type's memory."""
        self.stays: list[Stay] = []
        self.busy_s = 0.0
        self._truth, self._kinds, self._work_s, self._memory_bytes = truth, kinds, work_s, memory_bytes
        self._runs: dict[int, _Run] = {}
        self._here: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self._busy: dict[tuple[str, int], tuple[float, float]] = {}

    def arrive(self, job: int, seat: Seat, now_s: float) -> None:
        """Put *job* on a GPU; it starves if there is not enough memory for it."""
        here = self._here[seat.node, seat.device]
        starves = self._starves(job, seat, here)
        work_s = OUT_OF_MEMORY_S if starves else self._work_s[job]
        self._runs[job] = _Run(seat=seat, start_s=now_s, left_s=work_s, since_s=now_s, starves=starves)
        here.append(job)
        self._retime(seat, now_s)

    def leave(self, job: int, now_s: float, *, is_gone: bool = False) -> Ending:
        """Take *job* off its GPU, and return how its stay ended."""
        run = self._runs.pop(job)
        ending: Ending = "gone" if is_gone else "out_of_memory" if run.starves else "done"
        seat = run.seat
        self.stays.append(
            Stay(job=job, node=seat.node, device=seat.device, start_s=run.start_s, end_s=now_s, ending=ending)
        )
        self._here[seat.node, seat.device].remove(job)
        self._retime(seat, now_s)
        return ending

    def next_end(self) -> tuple[float, int]:
        """Return when the next job will be off its GPU by itself, and which; infinite and -1 where none is there."""
        return min(((run.end_s, job) for job, run in self._runs.items()), default=(inf, -1))

    def __contains__(self, job: object) -> bool:
        return job in self._runs

    def _starves(self, job: int, seat: Seat, here: Sequence[int]) -> bool:
        own, *others = (self._truth.memory_bytes(self._kinds[one], seat.gpu_type) for one in (job, *here))
        return own > seat.memory_cap_bytes or own + sum(others) > self._memory_bytes[seat.gpu_type]

    def _retime(self, seat: Seat, now_s: float) -> None:
        """Compute the speed of each job on one GPU from now on."""
        place = (seat.node, seat.device)
        since_s, busy = self._busy.get(place, (now_s, 0.0))
        self.busy_s += (now_s - since_s) * busy
        speeds, busy = self._scene(self._here[place], seat.gpu_type)
        self._busy[place] = (now_s, busy)
        for job, speed in speeds.items():
            run = self._runs[job]
            run.left_s -= (now_s - run.since_s) * run.speed
            run.since_s, run.speed = now_s, 1.0 if run.starves else speed

    def _scene(self, jobs: Sequence[int], gpu_type: int) -> tuple[Mapping[int, float], float]:
        """Return the work that each of *jobs* does in a second beside the others, and the GPU's busy share."""
        if not jobs:
            return {}, 0.0
        tenants = [Tenant(self._kinds[job], self._runs[job].seat.thread_percent) for job in jobs]
        together = self._truth.colocation_of(tenants, gpu_type)
        speeds = {
            job: speed * self._truth.speed(self._kinds[job], gpu_type)
            for job, speed in zip(jobs, together.speeds, strict=True)
        }
        return speeds, together.utilization
