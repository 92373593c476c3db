"""What the samples of a job's GPUs add up to: pure sums over time, in which unknown stays unknown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from gpusage_hooks.types import GpuReading

T = TypeVar("T", int, float)
SHARES = ("gpu_utilization", "sm_activity", "dram_activity")
"""What is a mean over time."""
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading of all GPUs of a job.

    Attributes:
        at_s: On the monotonic clock.
        memory_bytes: Of the job's own processes, on the GPU where they hold the most.
        alone: Whether nobody else was on any of the GPUs.
    """

    at_s: float
    readings: tuple[GpuReading, ...]
    memory_bytes: int | None
    alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over the samples so far.

    Attributes:
        seconds: For each of `SHARES`, how long it was known.
        share_seconds: For each, the sum of share times seconds.
        minute: What was known of the utilization since the last whole minute: its seconds, and share times seconds.
        peak_utilization: The mean over the busiest minute; ``None`` before the first is over.
    """

    sampled_s: float = 0.0
    alone_s: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    share_seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    memory_bytes: int | None = None
    energy_j: float | None = None
    minute: tuple[float, float] = (0.0, 0.0)
    peak_utilization: float | None = None

    def mean(self, name: str) -> float | None:
        """Return the mean over the time in which the share *name* was known, 0 to 1; ``None`` where it never was."""
        seconds = self.seconds.get(name, 0.0)
        return min(1.0, self.share_seconds[name] / seconds) if seconds else None


def add_sample(totals: Totals, before: Sample, now: Sample) -> Totals:
    """Return *totals* with what passed between two samples; the shares are those of the later one."""
    elapsed_s = max(0.0, now.at_s - before.at_s)
    shares = {name: _mean([getattr(reading, name) for reading in now.readings]) for name in SHARES}
    known = {name: share for name, share in shares.items() if share is not None}
    return replace(
        _with_minute(totals, elapsed_s, known.get("gpu_utilization")),
        sampled_s=totals.sampled_s + elapsed_s,
        alone_s=totals.alone_s + elapsed_s * (before.alone and now.alone),
        seconds={name: totals.seconds.get(name, 0.0) + elapsed_s * (name in known) for name in SHARES},
        share_seconds={name: totals.share_seconds.get(name, 0.0) + elapsed_s * known.get(name, 0.0) for name in SHARES},
        memory_bytes=_combine_known(max, totals.memory_bytes, now.memory_bytes),
        energy_j=_combine_known(lambda one, other: one + other, totals.energy_j, _energy_j(before, now)),
    )


def _with_minute(totals: Totals, elapsed_s: float, share: float | None) -> Totals:
    """Return *totals* with *share* counted in the minute that goes on, which may be over by it."""
    if share is None:
        return totals
    seconds, share_seconds = totals.minute[0] + elapsed_s, totals.minute[1] + elapsed_s * share
    if seconds < MINUTE_S:
        return replace(totals, minute=(seconds, share_seconds))
    peak = _combine_known(max, totals.peak_utilization, min(1.0, share_seconds / seconds))
    return replace(totals, minute=(0.0, 0.0), peak_utilization=peak)


def job_memory_bytes(readings: Sequence[GpuReading], own: Collection[int]) -> int | None:
    """Return the memory of the processes *own* on the GPU where they hold the most; ``None`` where none is known."""
    held = [
        [memory for pid, memory in reading.process_memory_bytes.items() if pid in own and memory is not None]
        for reading in readings
    ]
    return max((sum(memories) for memories in held if memories), default=None)


def _energy_j(before: Sample, now: Sample) -> float | None:
    """Return the energy of all GPUs between two samples; ``None`` where one is unknown, or its counter began anew."""
    spent_j = [
        None if first.energy_j is None or last.energy_j is None else last.energy_j - first.energy_j
        for first, last in zip(before.readings, now.readings, strict=False)
    ]
    known_j = [joules for joules in spent_j if joules is not None and joules >= 0]
    return sum(known_j) if known_j and len(known_j) == len(spent_j) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _combine_known(join: Callable[[T, T], T], one: T | None, other: T | None) -> T | None:
    if one is None or other is None:
        return other if one is None else one
    return join(one, other)
