"""Sampling one job from its start to its end: look, wait, and keep what is known so far in a file.

Invariants:

1. Whatever goes wrong with one look costs that look; the job never notices.
2. What is known so far is in the file, whole, at most `KEPT_EVERY_S` old: nothing is lost with this process but that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gpusage.dividing.granted import LIMIT_VARIABLE, limit_bytes
from gpusage.plugins.hooks import Hooks
from gpusage.sampler.processes import JobIdentity, JobProcesses
from gpusage.sampler.totals import Look, Totals, added, memory_of
from gpusage_hooks.types import GpuReading, Granted, Usage

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
PAUSE_GROWTH = 1.3
"""A short job is seen often enough, a long one costs next to nothing."""
KEPT_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledJob:
    """A job on this machine.

    Attributes:
        job_id: In the manager's own form.
        devices: Its GPUs, as its environment names them.
        identity: How its processes are known.
        cpus: Processors that it was given; ``None`` where that is unknown.
    """

    manager: str
    job_id: str
    devices: tuple[str, ...]
    identity: JobIdentity
    cpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a machine tells of a job beside the counters of its GPUs.

    Attributes:
        has_partners: Tells whether another job was given one of the GPUs as well.
        granted: Returns the part of the GPU that the job has; ``None`` where nobody read it back.
    """

    has_partners: Callable[[], bool]
    granted: Callable[[], Granted | None]


class Sampling:
    """Samples one job.

    Args:
        job: What to look at.
        hooks: Whose `read_gpu` is asked.
        surroundings: What the machine tells beside the counters.
    """

    def __init__(self, job: SampledJob, hooks: Hooks, surroundings: Surroundings) -> None:
        self._job = job
        self._hooks = hooks
        self._surroundings = surroundings
        self._granted = Granted()
        self._processes = JobProcesses(job.identity)
        self._totals = Totals()
        self._started_at_s = time.time()
        self._last: Look | None = None
        self._name = ""

    def run(self, wait: Callable[[float], bool], keep: Callable[[Usage], None]) -> Usage:
        """Sample until *wait*, which is called with seconds, tells that the job has ended; return its usage.

        Args:
            wait: Waits, and tells whether the end has come.
            keep: Called now and then with what is known so far.
        """
        pause_s, kept_at_s, ended = FIRST_PAUSE_S, time.monotonic(), False
        self.look()
        keep(self.usage())
        while not ended:
            ended = wait(pause_s)
            self.look()
            pause_s = min(LONGEST_PAUSE_S, pause_s * PAUSE_GROWTH)
            if time.monotonic() - kept_at_s >= KEPT_EVERY_S:
                keep(self.usage())
                kept_at_s = time.monotonic()
        return self.usage()

    def look(self) -> None:
        """Look once, and add what has passed since the last look."""
        now = self._seen()
        if self._last is not None:
            self._totals = added(self._totals, self._last, now)
        self._last = now

    def usage(self) -> Usage:
        """Return what is known so far; whose job it is, and what was decided of it, its manager knows."""
        used, totals = self._processes.consumption(), self._totals
        return Usage(
            number="",
            user="",
            manager=self._job.manager,
            job_id=self._job.job_id,
            gpu=self._name,
            granted=self._granted,
            started_at_s=self._started_at_s,
            ended_at_s=time.time(),
            sampled_s=totals.sampled_s,
            alone_s=totals.alone_s,
            gpu_utilization=totals.mean("gpu_utilization"),
            peak_utilization=totals.peak_utilization,
            sm_activity=totals.mean("sm_activity"),
            dram_activity=totals.mean("dram_activity"),
            memory_bytes=totals.memory_bytes,
            energy_j=totals.energy_j,
            cpu_s=used.cpu_s,
            cpus=self._job.cpus,
            read_bytes=used.read_bytes,
        )

    def _seen(self) -> Look:
        own = self._processes.look()
        self._granted = self._with_limit(self._surroundings.granted() or self._granted)
        readings = tuple(filter(None, map(self._reading, self._job.devices)))
        self._name = readings[0].name if readings else self._name
        return Look(
            at_s=time.monotonic(),
            readings=readings,
            memory_bytes=memory_of(readings, own),
            alone=not self._is_accompanied(readings, own),
        )

    def _with_limit(self, granted: Granted) -> Granted:
        """Return *granted* with the cap on memory that the job's own processes have: not every node is told of it."""
        known = granted.memory_limit_bytes or self._granted.memory_limit_bytes
        return replace(granted, memory_limit_bytes=known or limit_bytes(self._processes.variable(LIMIT_VARIABLE)))

    def _reading(self, device: str) -> GpuReading | None:
        with suppress(Exception):  # a plugin or a driver may fail in any way
            return self._hooks.read_gpu(device)
        return None

    def _is_accompanied(self, readings: Sequence[GpuReading], own: frozenset[int]) -> bool:
        others = {pid for reading in readings for pid in reading.process_memory_bytes if pid not in own}
        return any(not self._processes.is_server(pid) for pid in others) or self._surroundings.has_partners()
