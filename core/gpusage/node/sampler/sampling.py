"""Sampling a job from its start to its end: sample, wait, and save its usage so far.

Invariants:

1. A failure costs one sample; the job never notices.
2. The file has the whole usage so far, at most `SAVE_INTERVAL_S` old; no more is lost with this process.
3. Samples add up to sums over time, in which unknown stays unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from gpusage.experience.finished_jobs import IDLE_PROCESSORS, IDLE_READ_BYTES_PER_S, UNUSED_BELOW
from gpusage.node.dividing.granted import LIMIT_VARIABLE, limit_bytes
from gpusage.node.sampler.processes import Consumption, JobProcesses, ProcessSelector
from gpusage.plugins.hooks import Hooks
from gpusage_hooks.types import Allocation, GpuReading, Usage

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
PAUSE_GROWTH = 1.3
"""Growing pauses sample a short job often enough, and a long one at next to no cost."""
WATCHED_SHARE = 0.8
SAVE_INTERVAL_S = 60.0
"""Longest usage of a job that is lost when its node dies."""
MemoryNote = Callable[[Mapping[int, int | None], Allocation], object]
"""Receives what each process of a job holds on its GPU, and the job's part of it."""
T = TypeVar("T", int, float)
SHARES = ("gpu_utilization", "sm_activity", "dram_activity")
"""Names of readings whose mean over time counts."""
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledJob:
    """A job on this machine.

    Attributes:
        job_id: The manager's own form.
        devices: Names of its GPUs in its environment.
        identity: Marks of its processes.
        cpus: Its processors; ``None`` if unknown.
    """

    manager: str
    job_id: str
    devices: tuple[str, ...]
    identity: ProcessSelector
    cpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """A machine's facts about a job besides the counters of its GPUs.

    Attributes:
        count_partners: Returns how many other jobs have a part of the same GPUs.
        granted: Returns the job's part of the GPU; ``None`` where nobody read it back.
        note_memory: Receives what each process of the job on a GPU holds, and the job's part, at every sample.
    """

    count_partners: Callable[[], int]
    granted: Callable[[], Allocation | None]
    note_memory: MemoryNote = lambda *_: None


class Sampling:
    """Samples a job.

    Args:
        job: The job.
        hooks: Plugins with `read_gpu`, which reads the counters.
        surroundings: The machine's facts about the job.
    """

    def __init__(self, job: SampledJob, hooks: Hooks, surroundings: Surroundings) -> None:
        self._job = job
        self._hooks = hooks
        self._surroundings = surroundings
        self._granted = Allocation()
        self._processes = JobProcesses(job.identity)
        self._totals = Totals()
        self._started_at_s = time.time()
        self._last: Sample | None = None
        self._name = ""

    def run(self, wait: Callable[[float], bool], save: Callable[[Usage], None]) -> Usage:
        """Sample until the job has ended, and return its usage.

        Args:
            wait: Waits for some seconds, and returns whether the job has ended.
            save: Saves the usage so far.
        """
        pause_s, saved_at_s, ended = FIRST_PAUSE_S, time.monotonic(), False
        # Saved at once: a node that dies in the first minute leaves at least the job's name and its GPU.
        self.sample()
        save(self.usage())
        while not ended:
            ended = wait(pause_s)
            # Once more after the end, for the time since the last sample.
            before, now = self._last, self.sample()
            pause_s = min(LONGEST_PAUSE_S, pause_s * PAUSE_GROWTH)
            # A job that grows towards its limit is about to reach it.
            used, limit = now.memory_bytes or 0, self._granted.memory_limit_bytes
            if limit and used >= WATCHED_SHARE * limit and before and used > (before.memory_bytes or 0):
                pause_s = FIRST_PAUSE_S
            if time.monotonic() - saved_at_s >= SAVE_INTERVAL_S:
                save(self.usage())
                saved_at_s = time.monotonic()
        return self.usage()

    def sample(self) -> Sample:
        """Take a sample, add the time since the last, and return it."""
        now = self._read_gpus()
        if self._last is not None:
            self._totals = add_sample(self._totals, self._last, now)
        self._last = now
        return now

    def usage(self) -> Usage:
        """Return the usage so far; the workload manager adds the user and the decision."""
        used, totals = self._processes.consumption(), self._totals
        return Usage(
            number="",
            user="",
            manager=self._job.manager,
            job_id=self._job.job_id,
            gpu=self._name,
            gpu_count=len(self._job.devices),
            granted=self._granted,
            started_at_s=self._started_at_s,
            ended_at_s=time.time(),
            sampled_s=totals.sampled_s,
            alone_s=totals.alone_s,
            held_s=totals.held_s,
            gpu_utilization=totals.mean("gpu_utilization"),
            peak_utilization=totals.peak_utilization,
            longest_idle_s=totals.longest_idle_s,
            sm_activity=totals.mean("sm_activity"),
            dram_activity=totals.mean("dram_activity"),
            memory_bytes=totals.memory_bytes,
            energy_j=totals.energy_j,
            cpu_s=used.cpu_s,
            cpus=self._job.cpus,
            read_bytes=used.read_bytes,
        )

    def _read_gpus(self) -> Sample:
        own = self._processes.refresh()

        # Not every node knows the cap on memory, but the job's own processes have it in their environment.
        granted = self._surroundings.granted() or self._granted
        limit = granted.memory_limit_bytes or self._granted.memory_limit_bytes
        limit = limit or limit_bytes(self._processes.variable(LIMIT_VARIABLE))
        self._granted = replace(granted, memory_limit_bytes=limit)

        readings: list[GpuReading] = []
        for device in self._job.devices:
            with suppress(Exception):  # a plugin or a driver may fail in any way
                reading = self._hooks.read_gpu(device)
                readings += [reading] if reading else []

        held = {pid: memory for each in readings for pid, memory in each.process_memory_bytes.items() if pid in own}
        self._surroundings.note_memory(held, self._granted)

        # A server of MPS shows on the GPU as well, and is no other job.
        others = {pid for reading in readings for pid in reading.process_memory_bytes if pid not in own}
        has_others = any(not self._processes.is_server(pid) for pid in others)
        self._name = readings[0].name if readings else self._name
        return Sample(
            at_s=time.monotonic(),
            readings=tuple(readings),
            memory_bytes=job_memory_bytes(readings, own),
            # A partner may be idle, so that no process of it shows.
            job_count=1 + max(has_others, self._surroundings.count_partners()),
            used=self._processes.consumption(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A reading of all GPUs of a job.

    Attributes:
        at_s: Time on the monotonic clock.
        memory_bytes: Memory of the job's own processes, on the GPU where they hold the most.
        job_count: The jobs on these GPUs, with this one.
        used: What the job's processes have taken of their host so far.
    """

    at_s: float
    readings: tuple[GpuReading, ...]
    memory_bytes: int | None
    job_count: int
    used: Consumption = field(default_factory=Consumption)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over the samples so far.

    Attributes:
        seconds: Known time of each of `SHARES`.
        share_seconds: Sum of share times seconds of each of `SHARES`.
        minute: Seconds, and utilization times seconds, since the last whole minute.
        minute_began: What the job had taken of its host at its beginning.
        peak_utilization: Mean over the busiest minute; ``None`` before the end of the first.
        idle_s: Length of the idle minutes up to now.
        longest_idle_s: The longest such length; ``None`` like the peak, and while nobody knows what the host did.
    """

    sampled_s: float = 0.0
    alone_s: float = 0.0
    held_s: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    share_seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    memory_bytes: int | None = None
    energy_j: float | None = None
    minute: tuple[float, float] = (0.0, 0.0)
    minute_began: Consumption | None = None
    peak_utilization: float | None = None
    idle_s: float = 0.0
    longest_idle_s: float | None = None

    def mean(self, name: str) -> float | None:
        """Return the mean over the time in which the share *name* was known, 0 to 1; ``None`` where it never was."""
        seconds = self.seconds.get(name, 0.0)
        return min(1.0, self.share_seconds[name] / seconds) if seconds else None


def add_sample(totals: Totals, before: Sample, now: Sample) -> Totals:
    """Return *totals* with the time between two samples added."""
    elapsed_s, job_count = max(0.0, now.at_s - before.at_s), max(before.job_count, now.job_count)

    # NVML's utilization is a mean over the time before a reading, so the later sample's shares hold for the interval.
    # A mean over the job's GPUs is known where each of them has the counter.
    known: dict[str, float] = {}
    for name in SHARES:
        values = [getattr(reading, name) for reading in now.readings]
        if values and None not in values:
            known[name] = sum(values) / len(values)

    # The peak is of whole minutes: a share must be enough for the busiest of them, not for a burst of a second.
    minute, peak, share = totals.minute, totals.peak_utilization, known.get("gpu_utilization")
    began, idle_s, longest_idle_s = totals.minute_began or before.used, totals.idle_s, totals.longest_idle_s
    if share is not None:
        minute = (minute[0] + elapsed_s, minute[1] + elapsed_s * share)
    if minute[0] >= MINUTE_S:
        busy = min(1.0, minute[1] / minute[0])
        peak = _combine_known(max, peak, busy)
        # A job that waits for its user, or was forgotten: in its middle as well, where its means would not show it.
        is_host_idle = _is_host_idle(began, now.used, minute[0])
        idle_s = idle_s + minute[0] if busy < UNUSED_BELOW and is_host_idle else 0.0
        longest_idle_s = _combine_known(max, longest_idle_s, None if is_host_idle is None else idle_s)
        minute, began = (0.0, 0.0), now.used

    return replace(
        totals,
        minute=minute,
        minute_began=began,
        peak_utilization=peak,
        idle_s=idle_s,
        longest_idle_s=longest_idle_s,
        sampled_s=totals.sampled_s + elapsed_s,
        alone_s=totals.alone_s + elapsed_s * (job_count == 1),
        held_s=totals.held_s + elapsed_s / job_count,
        seconds={name: totals.seconds.get(name, 0.0) + elapsed_s * (name in known) for name in SHARES},
        share_seconds={name: totals.share_seconds.get(name, 0.0) + elapsed_s * known.get(name, 0.0) for name in SHARES},
        memory_bytes=_combine_known(max, totals.memory_bytes, now.memory_bytes),
        energy_j=_combine_known(lambda one, other: one + other, totals.energy_j, _energy_j(before, now)),
    )


def _is_host_idle(before: Consumption, now: Consumption, duration_s: float) -> bool | None:
    if None in (before.cpu_s, before.read_bytes, now.cpu_s, now.read_bytes):
        return None
    cpu_s, read_bytes = (now.cpu_s or 0.0) - (before.cpu_s or 0.0), (now.read_bytes or 0) - (before.read_bytes or 0)
    return cpu_s <= IDLE_PROCESSORS * duration_s and read_bytes <= IDLE_READ_BYTES_PER_S * duration_s


def job_memory_bytes(readings: Sequence[GpuReading], own: Collection[int]) -> int | None:
    """Return the memory of the processes *own* on the GPU where they hold the most; ``None`` where none is known."""
    held = [
        [memory for pid, memory in reading.process_memory_bytes.items() if pid in own and memory is not None]
        for reading in readings
    ]
    return max((sum(memories) for memories in held if memories), default=None)


def _energy_j(before: Sample, now: Sample) -> float | None:
    """Return the energy of all GPUs between two samples; ``None`` if a counter is unknown or began anew."""
    # A counter that went down began anew, as after a driver's reset: its difference would be negative.
    spent_j = [
        None if first.energy_j is None or last.energy_j is None else last.energy_j - first.energy_j
        for first, last in zip(before.readings, now.readings, strict=False)
    ]
    known_j = [joules for joules in spent_j if joules is not None and joules >= 0]
    return sum(known_j) if known_j and len(known_j) == len(spent_j) else None


def _combine_known(join: Callable[[T, T], T], one: T | None, other: T | None) -> T | None:
    if one is None or other is None:
        return other if one is None else one
    return join(one, other)
